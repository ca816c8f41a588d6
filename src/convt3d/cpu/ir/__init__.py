"""The language kernels are written in: typed values, control flow, vector mathematics, the frame of a kernel."""
