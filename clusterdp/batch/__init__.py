"""The batch program: decides whether an attempt of a job may start, runs its step, and decides what follows its end.

A copy lies in each run folder (RUN/batch), and becomes the batch process of the job by `exec`, so that an upgrade never
changes a job that waits. Standard library and Python 3.6 only: it runs on the first node with whatever Python is there.

    main        the command line: `run RUN -- STEP...`; `begin RUN` and `end RUN CODE` for a script of submitit's
    job         this job, as its environment names it
    rules       what the config has decided, in batch/rules.json
    texts       files as text
    causes      the words for how an attempt ended
    attempts    the earlier attempts by their files, each with a cause
    history     what they come to: how often the run went on, and whether it is over
    policy      whether an attempt may start, whether one more may follow, when, and on which nodes
    end         what follows its end?
    evidence    what it died of: which fault, whose error, and whether it is the same again
    rendezvous  address and port at which the ranks meet
    slurm       all commands of Slurm's that are run
    record      all that is written; a full disk loses a line, never the run
    children    the processes of this one, and its signals
    decisions   the words for what this program may decide
    attempt     one attempt, from its start to what follows it
    step        the srun command of the ranks, and what is watched while it runs
    ending      how the attempt ends: over, left alone, or requeued
    check_nodes  launch.preflight: the step that looks at each node, and what follows from it
    notify      words to people
"""
