"""The batch program: decides whether an attempt of a job may start, runs its step, and acts on its end.

Each run folder has a copy of the program (RUN/batch), which replaces the batch script's shell by `exec`. Because of the
copy, an upgrade of clusterdp never changes a waiting job. The program uses only the standard library and Python 3.6,
because the first node's own Python runs the copy.
"""
