"""The text of Triton kernels."""
