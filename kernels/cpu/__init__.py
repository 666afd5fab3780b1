"""CPU twins of the kernels, compiled by numba. Importing any of them fixes numba's cache folder and threading layer first."""
