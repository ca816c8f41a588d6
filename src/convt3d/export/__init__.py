"""Pipelines as libraries that need no Python: a planner and a run-time in C around the kernels that LLVM makes."""
