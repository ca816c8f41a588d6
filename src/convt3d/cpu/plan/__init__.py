"""How a pipeline runs on a CPU: tiles, algorithm, code, worked out from shapes and facts of the machine."""
