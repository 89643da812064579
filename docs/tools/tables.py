"""Tables of the reference that no code has: exit codes, the events of the ledger, and the use of each file of a run
folder. tests/docs/test_reference.py compares them with the code."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """An event of the ledger. writers: the last word of the file's name. keys: besides time, event and attempt."""

    writers: str
    keys: str
    meaning: str


class FileUse(NamedTuple):
    writer: str
    readers: str
    form: str


EXIT_CODES = {
    "0": "done",
    "1": "the job failed, gave up, or was stopped; `check` has found an error; checkpoints are bad (`verify`), or "
    "differ (`diff`)",
    "2": "a mistake in the config or on the command line",
    "3": "Slurm refused, or is missing",
    "4": "no such run, or the run does not allow this now",
    "5": "checkpoints: damaged, or not fitting",
    "6": "the ranks did not find each other",
    "7": "the fake cluster could not do it",
    "8": "this training cannot continue: ranks with different models, a loss that is NaN",
    "9": "the cluster behind ssh (`--on HOST`) cannot be reached, or has no clusterdp of this version",
    "75": "an exit code of jobs: stopped and saved, but not requeued (`stop`, `restart.requeue: false`, or a "
    "refusal by Slurm)",
    "130": "Ctrl-C while following a run; the job continues",
    "143": "the job was cancelled",
}

EVENTS = {
    # before an attempt
    "submitted": Event(
        "submit batch",
        "job name entry backend dir folder cluster from_step offset size after",
        "Slurm has accepted the job. `after`: `[state, folder]` of each run that it follows. `batch` writes it with "
        "`job` alone, after a resubmission. `offset` and `size` are those of a sweep's array.",
    ),
    "submit-in-doubt": Event(
        "submit",
        "name entry backend dir folder cluster from_step offset size",
        "sbatch gave no clear answer: the job may exist.",
    ),
    "followed": Event("submit", "by", "Another run is submitted that follows this one: its folder."),
    "linked": Event("batch", "job", "The next job of a chain (`restart.chain`) waits in the queue."),
    "stop-asked": Event("stop", "job", "`clusterdp stop` has marked the run."),
    "cancelled": Event(
        "cancel batch",
        "job cause",
        "`clusterdp cancel` has marked the run, or the batch program has ended it for that.",
    ),
    "cancel-told": Event("cancel", "job", "scancel was run, or the job was over."),
    "rehearsal": Event("rehearsal", "job step", "`local.preempt_at` preempts the job at this step."),
    # the attempt begins
    "started": Event(
        "batch rank0",
        "nodes most_nodes job restart awake cpus gpus partition account pid",
        "The batch program begins the attempt. `most_nodes`: the end of a range of nodes. `awake`: the time at which "
        "the script began. `cpus`: in Slurm's form, by node. `gpus`: of all nodes. `rank0` writes it, with its `pid`, "
        "in an attempt without Slurm.",
    ),
    "queued": Event("batch", "since until", "The time that the job has waited in the queue."),
    "placed": Event("batch", "nodes", "Spare nodes take the places of others: the nodes of the ranks."),
    "preflight": Event("batch", "seconds failures", "`launch.preflight` has ended. `failures`: a text per node."),
    "grows": Event("batch", "size", "The ranks are told to save, so that the job is requeued for `size` nodes."),
    "warm": Event("batch", "", "Ranks in reserve, with torch loaded, are the ranks of this attempt."),
    "restored": Event(
        "rank0",
        "step checkpoint inexact memory phase",
        "All ranks have restored a checkpoint, or a copy in memory. `inexact`: the reasons why the training does not "
        "continue bit for bit.",
    ),
    "witness": Event(
        "rank0",
        "restored_step first last verdict compared differs",
        "The steps from `first` to `last` were compared with those after the save. `verdict`: `same`, `rounding` or "
        "`other`.",
    ),
    "started-from": Event("rank0", "path step", "The state of `checkpoint.start_from` is loaded."),
    "trying": Event("rank0", "what", "`clusterdp profile --find workers` tries numbers of workers."),
    # the attempt runs
    "spent": Event(
        "rank0",
        "step startup_s restore_s steps_s saves_s evaluation_s",
        "The seconds of the attempt so far, by kind of work.",
    ),
    "saved": Event(
        "rank0 batch",
        "step seconds bytes phase memory",
        "A checkpoint is committed. `memory`: the batch program has written a copy in memory to the disk.",
    ),
    "forgotten": Event(
        "rank0",
        "name kind where what quiet",
        "`name`, a `kind`, has changed and is not in the state of its loop, which begins at `where`; `what`: a text. "
        "`quiet`: numbers, lists and dicts.",
    ),
    "save-failed": Event("rank0", "step error failures", "A save has failed; `failures`: how many in a row."),
    "signal": Event(
        "rank0 batch",
        "name step exit",
        "The ranks stop at `step` for the reason `name`; or the batch program got TERM; or it exits with `exit`, "
        "because the job was cancelled (`name` is `ending`).",
    ),
    "hang": Event("hang batch", "ranks nodes step phase reason", "The ranks that are behind, and their nodes."),
    "hang-ended": Event("batch", "", "The program prints again."),
    "silent": Event("batch", "nodes", "These nodes give no sign of life while others do."),
    "silent-ended": Event("batch", "nodes", "These nodes give signs of life again."),
    "suspended": Event("hang", "seconds", "The rank and its agent were stopped for so long, e.g. a suspended job."),
    "told": Event("batch", "", "A message of `notify` was sent."),
    # the attempt ends
    "stopped": Event("rank0", "step reason", "All ranks have stopped at this step."),
    "exited": Event("batch", "exit", "The step of the ranks has ended with this exit code."),
    "finished": Event("rank0 batch", "cause step", "The training, and with `cause` the run, is complete."),
    "failed": Event(
        "batch",
        "cause exit error rank reason requeue",
        "The attempt has failed. Without a `requeued` or `restarted` after it, the run is over; `reason` has the limit "
        "that ended it. `requeue` is `refused` if Slurm has refused to requeue the job.",
    ),
    "restarted": Event("batch", "cause of spare size", "The ranks of attempt `of` start again in the same allocation."),
    "requeued": Event("batch", "cause of", "Attempt `of` is over, and the job is back in the queue."),
}

BATCH, RANK0, SUBMIT = "batch program", "rank 0", "`submit`"
NEXT = "batch program of later attempts"
FILES = {  # the names are those in the docstring of clusterdp.rundir
    "config.yaml": FileUse(f"{SUBMIT}, `resume`", "ranks, `again`, `resume`, `diff`, `report`", "YAML; mode 600"),
    "job.sbatch": FileUse(f"{SUBMIT}, `resume`", "sbatch", "bash; mode 600"),
    "batch/": FileUse(f"{SUBMIT}, `resume`", "the script, which becomes this program", "Python 3.6 and JSON"),
    "code/": FileUse(SUBMIT, "ranks, `again`, `diff`", "the tree of the submit directory"),
    "words, script.sh": FileUse(SUBMIT, "the sweep's script", "words that end in NUL; bash"),
    "source.json source.diff": FileUse(SUBMIT, "`diff`, `report`, `again`", "JSON; the output of `git diff`; mode 600"),
    "attempts/<job>.<restart>/": FileUse(BATCH, "every verb that shows a run", "a folder"),
    "outcome": FileUse(RANK0, f"{BATCH}, `status`", "three words in a line"),
    "chain": FileUse(BATCH, NEXT, "a job id"),
    "began": FileUse(BATCH, NEXT, "a line: Unix time, local time, restart count, nodes in Slurm's form"),
    "hosts": FileUse(BATCH, "srun", "a node in each line"),
    "setup": FileUse(BATCH, "`why`", "a text in each line"),
    "cause": FileUse(f"{BATCH} of this attempt or the next", f"{NEXT}, `status`", "a word, see below"),
    "exit": FileUse(BATCH, f"{NEXT}, `status`", "a line: exit code or `-`, seconds, Unix time"),
    "error": FileUse("first rank to fail", f"{BATCH}, `why`", "four lines: node, step, message, rank"),
    "raised.pkl": FileUse("first rank to fail", "`Job.result()`", "a pickle; mode 600"),
    "mistake": FileUse(BATCH, NEXT, "three lines: node; step or `-`, and whether within a minute; message"),
    "avoid": FileUse(BATCH, f"{NEXT}, `status`", "words: nodes"),
    "saved": FileUse(f"{RANK0}, {BATCH}", f"{BATCH}, `status`", "a number"),
    "key": FileUse(RANK0, "ranks", "random bytes; mode 600"),
    "cold": FileUse("a rank", BATCH, "empty"),
    "rescue": FileUse("a keeper", "keepers", "a line: node, process id"),
    "times.json": FileUse(RANK0, "`profile`, `status`, `report`", "JSON"),
    "found.json": FileUse("a rank", "`profile`", "a JSON array of lines"),
    "hang.txt": FileUse(
        f"rank 0's agent, or the {BATCH}", "people, `why`, `notify`", "text; the first line is the cause"
    ),
    "hang/nodes": FileUse("rank 0's agent", "ranks", "words: nodes"),
    "hang/flight-record-n1.pickle": FileUse("the node's agent", "people, torch's `fr_trace`", "torch's pickle"),
    "hung": FileUse(f"a rank, or the {BATCH}", BATCH, "words: nodes; may be empty"),
    "trace-rank-00000.json.gz": FileUse("that rank", "people, Perfetto", "Chrome's trace format, gzipped"),
    "logs/node-00003.log": FileUse(
        "srun", f"`logs`, `why`, {BATCH}", "text: a rank before each line, at most 1 KiB of one"
    ),
    "logs/rank-00003.out": FileUse("torchrun's rank, `launch()`", f"`logs`, `why`, {BATCH}", "text"),
    "logs/node-00000.out": FileUse("srun", "`logs`, `why`", "text"),
    "logs/preflight.out": FileUse("srun", BATCH, "text"),
    "logs/keepers.log": FileUse("srun", BATCH, "text"),
    "next/": FileUse("srun", f"{BATCH}, which renames it to `logs/` of the next attempt", "a folder of logs"),
    "slurm-<job>.out": FileUse("Slurm", f"{BATCH}, `why`", "text"),
    "submitit/": FileUse("submitit", "submitit, the worker", "submitit's own files"),
    "submits/000001": FileUse(f"{SUBMIT}, `resume`", "the same verbs", "JSON: pid, host, since, released"),
    "claims/000002": FileUse(RANK0, f"{RANK0} of each attempt, {BATCH}", "a line: attempt, random token"),
    "witness/<step>-<checkpoint>.json": FileUse(RANK0, f"{RANK0} of a later attempt", "JSON: digests, see exact.md"),
    "events/<attempt>-<writer>.jsonl": FileUse(
        "that writer", "every verb that shows a run", "JSON lines, see the ledger"
    ),
    "metrics/<attempt>.jsonl": FileUse(RANK0, "`status`, `plot`, `report`, `sweep`", "JSON lines: time, step, values"),
    "tensorboard/ mlruns/ wandb-id mlflow-run-id": FileUse(RANK0, "these tools", "the tools' own files; ids as text"),
    "checkpoints/": FileUse("ranks", "ranks, `checkpoint`", "[the checkpoint format](checkpoint_format.md)"),
    "cancelled": FileUse("`cancel`", f"{BATCH}, ranks", "a line: Unix time"),
    "stop": FileUse("`stop`", f"{BATCH}, ranks", "a line: Unix time"),
    "told": FileUse(BATCH, NEXT, "a line for each message: chain or attempt, event, cause"),
    "function.pkl result.pkl": FileUse("`submit_function`; rank 0", "ranks; `Job.result()`", "pickles; mode 600"),
    "note": FileUse("`note`", "`note`, `status`, `list`", "text"),
}
SWEEP_FILES = {  # the names are those in the docstring of clusterdp.rundir.sweep
    "sweep.json": FileUse(SUBMIT, "`sweep`, `status`", "JSON: name, elements by number; mode 600"),
    "job.sbatch": FileUse(SUBMIT, "sbatch", "bash; mode 600"),
    "code/": FileUse(SUBMIT, "ranks of all elements", "the tree of the submit directory"),
    "events/": FileUse(SUBMIT, "`sweep`, `status`", "JSON lines, see the ledger"),
    "0/ 1/ 2/ ...": FileUse(SUBMIT, "every verb that shows a run", "run folders"),
}
