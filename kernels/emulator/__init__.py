"""Runs the CUDA sources of `kernels.cuda` on the processor, to prove them where there is no GPU."""
