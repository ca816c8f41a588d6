"""Bring your own kernel: cases, a sandbox, and verdicts that nothing inside the sandbox can change."""
