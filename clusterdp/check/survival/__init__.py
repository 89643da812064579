"""Findings about a preemption: whether the run continues later, and whether its ranks get the signal."""
