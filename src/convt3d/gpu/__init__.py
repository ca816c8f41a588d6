"""The GPU: plans of Triton kernels, their text, and running them on torch tensors."""
