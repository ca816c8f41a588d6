"""What is asked: frozen stages and pipelines, shape rules, float64 meaning, exact rewrites, and the five problems."""
