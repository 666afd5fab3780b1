"""CUDA C++ kernels, what describes them, and the device that runs them through CuPy."""
