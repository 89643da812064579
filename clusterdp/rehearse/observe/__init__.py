"""The behaviour of a run from outside: the processes of its ranks, the files that they use, and the output."""
