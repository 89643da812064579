"""The run folder: the name of every file that a run owns, and how its ledger is written and read.

    config.yaml                       the resolved config, as submitted
    job.sbatch                        the script; `sbatch job.sbatch` by hand does the same as `clusterdp submit`
    batch/                            a copy of the batch program, and rules.json: its part of the config
    code/                             the snapshot that every attempt runs, read-only; in an element of a sweep a link
    words, script.sh                  in an element: the program that the sweep's script runs (see sweep.py)
    source.json source.diff           the source of the run: commit, uncommitted changes, packages, user
    attempts/<job>.<restart>/         one folder per attempt, made by the batch script; after a restart in place
                                      <job>.<restart>.<number>
        outcome                       `<done|requeue|stop|overtaken> <reason> <step>`: the outcome, agreed by all ranks
        chain                         the first job of the chain of resubmissions that this attempt belongs to
        began                         the start, in seconds and by the clock; restart count and nodes
        hosts                         the node of each rank, by rank, if the job may lose some
        setup                         the lines of launch.setup that failed
        cause                         why the attempt ended, by the batch program of this attempt or of the next one
        exit                          the program's exit code, its run time in seconds, and the time of its end
        error                         of the rank that failed first: node, step, message and rank
        raised.pkl                    of submit_function(): the error of the first rank that failed, pickled
        mistake                       the same error, in the form that later attempts compare with their own
        avoid                         nodes that later attempts avoid
        saved                         the last step of which this attempt committed a checkpoint
        key                           proves that a process is an agent of this attempt; only the owner can read it
        cold                          exists if the program sets variables that torch reads when it is loaded
        rescue                        the node and the process that act for a lost node of the batch script
        times.json                    the parts of the steps' time, by rank, with a diagnosis
        found.json                    results of `clusterdp profile --find`, as lines
        hang.txt                      the position of all ranks in a hang, and the ranks that were behind
        hang/nodes                    the nodes of the ranks that were behind
        hang/flight-record-n1.pickle  the last collectives of a rank on node n1, by the recorder in torch's NCCL group
        hung                          exists if the attempt was ended because it hung: the nodes of the ranks behind
        trace-rank-00000.json.gz      a trace of some steps by torch.profiler, if profile.trace is set
        logs/node-00003.log           the output of the ranks of node 3, each line after its rank (srun --label)
        logs/rank-00003.out           the output of rank 3, with another launcher than srun, and in older runs
        logs/node-00000.out           the output of torchrun's agent on the first node
        logs/preflight.out            the output of launch.preflight
        logs/keepers.log              messages of the keepers, one process on each node
        next/                         logs of the ranks in reserve, until their attempt begins
    slurm-<job>.out                   the output of the batch script, over all attempts of the job
    submitit/                         with `backend: submitit`: its script, its pickle, and the batch script's output
    submits/000001                    the process that submits a job: the highest number (exclusively created)
    witness/<step>-<checkpoint>.json  what followed a save, to compare a resume with
    claims/000002                     the attempt that owns the folder: the highest number (exclusively created)
    events/<attempt>-<writer>.jsonl   the ledger, one file per writer
    metrics/<attempt>.jsonl           measurements by rank 0
    tensorboard/ mlruns/ wandb-id mlflow-run-id   if metrics.to has them: one run over all attempts
    checkpoints/                      unless checkpoint.url names another place
    cancelled                         exists if the user cancelled the run: no attempt starts any more
    stop                              exists if the user asked the run to save and stop: no attempt starts any more
    told                              messages that were sent (notify:): chain or attempt, event, cause
    function.pkl result.pkl           of submit_function(): the function and its arguments, and what it returned
    note                              a line of the user's own about the run

Appending from several machines to one file is not atomic on NFS: each writer has its own file. Readers merge the files
of all writers by time.
"""

from clusterdp.plainfile import write_durably
from clusterdp.rundir.ledger import (
    Ledger,
    append_line,
    as_event,
    mark_cancelled,
    mark_stopped,
    mark_told,
    parse,
    parse_lines,
    read_lines,
)
from clusterdp.rundir.lenient_reads import read_events
from clusterdp.rundir.names import Attempt, RunDir
from clusterdp.rundir.sweep import SweepDir, is_sweep, sweep_of

__all__ = [
    "Attempt",
    "Ledger",
    "RunDir",
    "SweepDir",
    "append_line",
    "as_event",
    "is_sweep",
    "mark_cancelled",
    "mark_stopped",
    "mark_told",
    "parse",
    "parse_lines",
    "read_events",
    "read_lines",
    "sweep_of",
    "write_durably",
]
