"""What every CUDA kernel must get right, as cases that run wherever a device is: under the emulator in tests, on a GPU in the bench."""
