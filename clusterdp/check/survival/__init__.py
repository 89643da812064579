"""Findings about a preemption: whether the run continues later, and whether its ranks get the signal.

preemption     the partition's form of preemption, and whether the run survives
launchers      torchrun, accelerate or srun below the ranks
signals        whether a stop reaches the ranks
program_hints  hints by the program's text
"""
