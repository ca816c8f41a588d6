"""The code of the steps: imported only when something must be compiled, for it needs LLVM."""
