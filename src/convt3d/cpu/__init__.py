"""The CPU: plans, code and its execution."""
