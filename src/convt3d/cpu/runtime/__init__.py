"""Doing it: executes a Plan on arrays."""
