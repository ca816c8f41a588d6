"""The kernel text: LLVM IR for the CPU, written for a structure of steps; sizes come in tables at the call."""
