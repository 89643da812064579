"""The commands as users start them: `python -SEs`, no site-packages, bare imports, a few milliseconds.

client    sends the words to the daemon and prints what comes back; the whole of the commands that are not below
srun      `srun`: it also passes on stdin and signals
salloc    `salloc`: it also runs a program while the job has its nodes
scontrol  `scontrol`: without a command it asks for one after the other
"""
