"""The gradient of a weight: a sum over positions, computed by a kernel of its own."""
