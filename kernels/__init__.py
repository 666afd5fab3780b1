"""Device code. A kernel is a family with one stem in `reference/` (NumPy), `cpu/` (numba) and `cuda/`; README.md has the legend."""
