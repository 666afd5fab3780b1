"""A GPU as a device: weights and products in torch, everything else in the kernels of `kernels.cuda`."""
