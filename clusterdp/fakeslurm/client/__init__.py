"""The commands that users start: `python -SEs`, no site-packages, bare imports, a start within milliseconds.

client    sends the command line to the daemon and prints the answer; enough for all commands that are not below
srun      `srun`: also passes on stdin and signals
salloc    `salloc`: also runs a program while the job has its nodes
scontrol  `scontrol`: without a command, also reads commands from stdin
"""
