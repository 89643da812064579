"""The batch program: decides whether an attempt of a job may start, runs its step, and acts on its end.

Each run folder has a copy of the program (RUN/batch), which replaces the batch script's shell by `exec`. Because of the
copy, an upgrade of clusterdp never changes a waiting job. The program uses only the standard library and Python 3.6,
because the first node's own Python runs the copy.

files/        what it reads and writes in the run folder, and words
processes/    Slurm's commands, notices, children
decide/       pure decisions: may an attempt start, how did it end, what follows
nodes/        the job's nodes: keepers, agents, copies in memory, spare nodes, where ranks meet
act/          what is done by a decision: a step, its end, checks of nodes, ranks in reserve
"""
