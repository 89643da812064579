"""The run folder: the name of every file that a run owns, and how its ledger is written and read.

    config.yaml                       the resolved config, as submitted
    job.sbatch                        the script; `sbatch job.sbatch` by hand does what `clusterdp submit` did
    code/                             the snapshot that every attempt runs, read-only; in an element of a sweep a link
    words, script.sh                  of an element: the program that the sweep's script runs (see sweep.py)
    source.json source.diff           what it was made from: commit, what was not committed, packages, by whom
    attempts/<job>.<restart>/         one folder an attempt, made by the batch script
        outcome                       `<done|requeue|stop|overtaken> <reason> <step>`: the ranks' last word, all agreed
        cause                         why the attempt ended: the batch script's last word, or the next attempt's
        exit                          the program's exit code, how many seconds it ran, and when it ended
        began                         when, twice: in seconds and by the clock; restart count and nodes
        error                         of the rank that failed first: node, step, message and rank
        mistake                       the same, as the next attempts compare it with their own
        avoid                         nodes that later attempts avoid
        saved                         the last step that this attempt committed a checkpoint of
        key                           of the notes that the ranks leave each other; nobody but the owner can read it
        chain                         the first job of the chain of resubmissions that this attempt belongs to
        times.json                    where the steps' time went, by rank, and what that means
        found.json                    what `clusterdp profile --find` has found, as lines
        hang.txt                      what all ranks were at when there was no progress, and which of them were behind
        hang/                         a note of each silent rank, by the process that watches it; `nodes`: as in `hung`
        hung                          there if the attempt was ended because it hung: the nodes of the ranks behind
        trace-rank-00000.json.gz      some steps as torch.profiler saw them, if profile.trace asks for it
        logs/rank-00003.out           what rank 3 printed
    submits/000001                    who submits a job of the run, or has: the highest number (exclusively created)
    claims/000002                     who owns the folder now: the highest number (exclusively created)
    events/<attempt>-<writer>.jsonl   the ledger, one file a writer
    metrics/<attempt>.jsonl           what rank 0 measured
    tensorboard/ mlruns/ wandb-id mlflow-run-id   if metrics.to asks for them: one run there, over all attempts
    checkpoints/                      unless checkpoint.url names another place
    cancelled                         there if the user cancelled the run: no attempt starts any more
    stop                              likewise if the user asked the run to save and stop
    told                              what people have been told of (notify:): chain or attempt, event, cause
    note                              a line of the user's own about the run

Appending from several machines to one file is not atomic on NFS: hence one file a writer. Readers merge by time.

The modules here:

    names          RunDir and Attempt: the names of the files
    sweep          SweepDir: the folder of several runs that differ in some values
    ledger         events written, read, and checked
    lenient_reads  JSON lines and one-line files that may be missing or torn
    tail           the new lines of a file that is still being written
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
