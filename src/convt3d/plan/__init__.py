"""How it is done: (pipeline, shapes, dtype) -> a frozen Plan."""
