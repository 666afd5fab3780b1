"""What every CUDA kernel must get right, as cases for any device: the emulator in tests, a GPU in the bench."""
