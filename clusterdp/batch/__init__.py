"""The batch program: decides whether an attempt of a job may start, runs its step, and acts on its end.

Each run folder has a copy of the program (RUN/batch), which replaces the batch script's shell by `exec`. Because of the
copy, an upgrade of clusterdp never changes a waiting job. The program uses only the standard library and Python 3.6,
because the first node's own Python runs the copy.

    main        the command line: `run RUN -- STEP...`; `begin`, `end` and `watch` for a script of submitit's
    job         this job, as its environment names it
    rules       decisions of the config, in batch/rules.json
    texts       files as text
    causes      the words for how an attempt ended
    attempts    the earlier attempts by their files, each with a cause
    history     a summary of the earlier attempts: how often the run continued, and whether it is over
    policy      whether an attempt may start, whether one more may follow, when, and on which nodes
    end         the decision after the end of an attempt
    failure     the failure of a program, and the decision that follows
    evidence    the reason of a failure: the fault, the rank and its error, and whether the error is repeated
    rendezvous  address and port at which the ranks meet
    slurm       all commands of Slurm's that are run
    record      all files that are written; a full disk loses a line, never the run
    children    the child processes, and the signals of this process
    decisions   the decisions that this program can make
    attempt     one attempt, from its start to its end
    placement   the nodes of the ranks, if the job has spare nodes
    step        the srun command of the ranks, and what is watched while it runs
    errors      the stderr of srun, and its line about the first task that has failed
    standby     the step of ranks that wait for the next attempt
    log_silence  whether a program hangs that does not report its steps
    copies      the copy of the state in memory that a leaving job writes to the disk
    keepers     the step of the keepers, and the nodes that are silent
    rescue      requeues a --no-kill job that has lost the node of its script, from another node
    keeper      a process on each node: holds copies of the state in memory, beats, and looks at a --no-kill job
    ending      how the attempt ends: over, left alone, or requeued
    check_nodes  launch.preflight: the step that checks each node, and the decision after it
    notify      messages to people
"""
