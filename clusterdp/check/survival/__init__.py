"""Whether the run comes back after a preemption, and its ranks hear of it.

preemption     how the partition preempts, and whether the run survives
launchers      torchrun, accelerate or srun below the ranks
signals        whether a stop reaches the ranks
program_hints  what the program's text says
"""
