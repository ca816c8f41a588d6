"""Runs what Triton's compiler makes of a kernel, its PTX, on the CPU: every instruction for all threads at once."""
