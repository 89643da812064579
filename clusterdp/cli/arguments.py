"""The command line: each verb with its arguments, in the order of `--help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from clusterdp import __version__
from clusterdp.cli import sending, verbs
from clusterdp.cli.parser import CliParser

EPILOG = """\
  clusterdp init && clusterdp submit train.yaml --cluster local    try it here
  clusterdp submit train.yaml params.lr=0.1 --dry-run              its script
RUN: a folder, a job id, or nothing: the latest. `clusterdp VERB --help`: more."""

SHARED: dict[str, dict[str, Any]] = {  # arguments that several verbs have; the last word of a key is the argument
    "config": {"metavar": "CFG.yaml", "help": "the config, or the name of an example: digits"},
    "optional config": {"metavar": "CFG.yaml", "nargs": "?", "help": "the config, or the name of an example: digits"},
    "overrides": {"nargs": "*", "default": [], "metavar": "key=value", "help": "a value in place of the config's"},
    "run": {"nargs": "?", "metavar": "RUN", "help": "default: the latest of this folder"},
    "named run": {"nargs": "?", "metavar": "RUN", "help": "must be named; without it the latest is shown"},
    "--json": {"action": "store_true", "help": "for programs"},
    "--dry-run": {"action": "store_true", "help": "print the script; write and submit nothing"},
    "--cluster": {"choices": ("auto", "slurm", "local"), "default": "auto", "help": "local: a fake one, here"},
    "--watch": {"action": "store_true", "help": "follow the run to its end, and exit as it does"},
}
SENDING = ("--dry-run", "--cluster", "--watch")
MANY = ("overrides", "runs", "metrics")  # names of arguments that take any number of words


class Verb(NamedTuple):
    """A verb of the command line, such as submit or status."""

    name: str
    run: Callable[[argparse.Namespace], int] | None
    about: str  # description of the verb in --help; the list of verbs has it up to its colon
    example: str = ""
    shared: Sequence[str] = ()  # keys of SHARED that the verb takes
    add: Callable[[CliParser], None] | None = None  # adds the verb's own arguments to its parser


def read_options(words: Sequence[str]) -> argparse.Namespace:
    """Returns the parsed options. `options.verb` is the function to call with these options."""
    top, program = parser(words), []
    if words[:1] == ["exec"] and "--" in words:
        at = list(words).index("--")
        words, program = words[:at], [*words[at + 1 :]]
    try:
        options, rest = top.parse_known_args(words or ["--help"])
    except SystemExit:  # --help
        sys.stdout.flush()
        raise
    # argparse takes the words of a list from one place only: in `submit cfg.yaml --watch lr=1`, argparse leaves lr=1
    # over.
    many = next((name for name in MANY if name in options), "")
    if any(word.startswith("-") for word in rest) or (rest and not many):
        at = next((i for i, word in enumerate(rest) if word.startswith("-")), 0)
        options.parser.error(f"unrecognized arguments: {' '.join(rest[at:])}")
    if rest:
        setattr(options, many, [*getattr(options, many), *rest])
    if program:
        options.words = [*options.words, *program]
    return options


def parser(words: Sequence[str] | None = None) -> CliParser:
    """Returns a parser for any words, or only for `words`. If `words` begin with a verb or --help, every other verb is
    left out, because adding all verbs takes some milliseconds."""
    top = CliParser(
        prog="clusterdp",
        usage="clusterdp [--version] [--debug] [--on HOST] VERB ...",
        description="One YAML file in; a multi-node PyTorch training out that cannot lose work.",
        epilog=f"{_overview()}\n\n{EPILOG}",
        example="clusterdp submit train.yaml",
        add_help=False,
    )
    top.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    top.add_argument("-V", "--version", action="version", version=f"clusterdp {__version__}", help=argparse.SUPPRESS)
    top.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)  # show a traceback with an error
    top.add_argument("--on", metavar="HOST", help=argparse.SUPPRESS)  # taken before: it may stand after the verb, too
    subparsers = top.add_subparsers(prog="clusterdp", metavar="VERB", required=True, help=argparse.SUPPRESS)
    first = next((word for word in words or () if word != "--debug"), "--help" if words == [] else "")
    needed = [each for each in VERBS if each.name == first] or VERBS
    for verb in () if first in ("-h", "--help", "-V", "--version") else needed:
        sub: CliParser = subparsers.add_parser(verb.name, help=verb.about, description=verb.about, example=verb.example)
        sub.set_defaults(verb=verb.run, parser=sub)
        for argument in verb.shared:
            sub.add_argument(argument.rpartition(" ")[2], **SHARED[argument])
        if verb.add and (words is None or verb.name in words):
            verb.add(sub)
    return top


def _overview() -> str:
    """Returns the verbs in two columns, which a terminal of 80 x 24 shows whole."""
    cells = [f"{verb.name:12}{verb.about.partition(':')[0]}" for verb in VERBS]
    half = -(-len(cells) // 2)
    return "\n".join(
        f"  {left:40}{right}".rstrip() for left, right in zip_longest(cells[:half], cells[half:], fillvalue="")
    )


def _submit(sub: CliParser) -> None:
    about = "a run for each value: KEY=0.1,0.01 or KEY=range(5); may be given again, for other keys"
    sub.add_argument("--sweep", action="append", default=[], metavar="KEY=VALUES", help=about)
    about = "start after that run is done, or any:RUN, started:RUN, each:SWEEP; may be given again"
    sub.add_argument("--after", action="append", default=[], metavar="RUN", help=about)


def _rehearse(sub: CliParser) -> None:
    from clusterdp.cli import rehearse

    rehearse.add_to(sub)


def _check(sub: CliParser) -> None:
    _submit(sub)
    sub.add_argument("--probe", action="store_true", help="also write a file to the store and to the run folder's")


def _init(sub: CliParser) -> None:
    sub.add_argument("folder", nargs="?", default=".", metavar="DIR", help="default: this one")
    sub.add_argument("--dry-run", action="store_true", help="print them instead")


def _resume(sub: CliParser) -> None:
    sub.add_argument("--from", dest="step", type=int, metavar="STEP", help="go on from this step, not the newest")


def _cancel(sub: CliParser) -> None:
    sub.add_argument("--with-followers", action="store_true", help="also the runs that were to start after it")


def _list(sub: CliParser) -> None:
    sub.add_argument("--all", action="store_true", help="also the runs of other folders")
    sub.add_argument("--state", metavar="STATES", help="e.g. running,failed")
    sub.add_argument("--name", metavar="GLOB", help="e.g. 'digits-*'")
    sub.add_argument("--tag", metavar="WORD", help="that is in its note")
    sub.add_argument("--since", metavar="WHEN", help="submitted since: 12h, 3d, 2w, 14:30 or 2026-01-31")
    sub.add_argument("-n", type=int, dest="limit", metavar="N", help="default: 20 on a terminal, else all; 0: all")
    sub.add_argument("--watch", action="store_true", help="go on with a line for each change of a state, until Ctrl-C")


def _top(sub: CliParser) -> None:
    sub.add_argument("--all", action="store_true", help="also the runs of other folders")


def _goodput(sub: CliParser) -> None:
    sub.add_argument("--since", metavar="WHEN", help="the hours of all runs of this folder since: 30d, 2w, 2026-01-31")
    sub.add_argument("--all", action="store_true", help="of the runs of other folders, too, by partition and account")
    sub.add_argument("--csv", action="store_true", help="for spreadsheets: a row for each run and cause")


def _logs(sub: CliParser) -> None:
    from clusterdp.cli import logs

    logs.add_to(sub)


def _rank(sub: CliParser) -> None:
    sub.add_argument("--rank", type=int, metavar="N", help="default: 0")


def _exec(sub: CliParser) -> None:
    sub.add_argument("words", nargs="*", default=[], metavar="-- PROGRAM ...", help="after --, with its arguments")
    which = sub.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, metavar="N", help="default: 0")
    which.add_argument("--all", action="store_true", help="once on each node, as its first rank")


def _stacks(sub: CliParser) -> None:
    sub.add_argument("--rank", metavar="RANKS", help="3, or 0,3,8-15; default: all")


def _sweep(sub: CliParser) -> None:
    sub.set_defaults(step=None, cluster="auto", watch=False)  # --resume calls resume_run(), which needs these options
    sub.add_argument("--by", metavar="METRIC", help="default: a test's or a validation's, else a loss")
    best = sub.add_mutually_exclusive_group()
    best.add_argument("--min", dest="lower", action="store_true", default=None, help="the lowest is best")
    best.add_argument("--max", dest="lower", action="store_false", help="the highest is; default: by its name")
    form = sub.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--csv", action="store_true", help="for spreadsheets")
    sub.add_argument("--top", type=int, metavar="N", help="the N best")
    does = sub.add_mutually_exclusive_group()
    does.add_argument("--resume", action="store_true", help="go on with them, with key=value as for `clusterdp resume`")
    states = ("failed", "stopped", "cancelled", "unsubmitted")
    does.add_argument("--retry", choices=states, help="submit the elements that are so once more")
    sub.add_argument("--dry-run", action="store_true", help="only say which elements --retry or --resume would submit")


def _diff(sub: CliParser) -> None:
    sub.add_argument("first", metavar="RUN")
    sub.add_argument("second", metavar="RUN")


def _plot(sub: CliParser) -> None:
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("metrics", nargs="*", default=[], metavar="METRIC", help="default: what people look for first")
    sub.add_argument("-o", dest="file", metavar="FILE.png", help="a picture instead: .png, .svg or .pdf")


def _report(sub: CliParser) -> None:
    sub.add_argument("runs", nargs="*", default=[], metavar="RUN", help="default: the latest")
    sub.add_argument("-o", dest="file", metavar="FILE.html", help="default: report-NAME.html, here")


def _note(sub: CliParser) -> None:
    sub.add_argument("text", nargs="*", metavar="TEXT", help="an empty one removes the note")
    sub.add_argument("--clear", action="store_true", help="remove the note")


def _rm(sub: CliParser) -> None:
    sub.add_argument("runs", nargs="*", metavar="RUN", help="must be named")
    sub.add_argument("--dry-run", action="store_true", help="say what would go")
    sub.add_argument("--yes", action="store_true", help="do not ask")


def _checkpoint(sub: CliParser) -> None:
    from clusterdp.cli import checkpoint

    checkpoint.add_to(sub)


def _profile(sub: CliParser) -> None:
    sub.add_argument("--steps", type=int, default=50, metavar="N", help="default: 50")
    sub.add_argument("--find", choices=("workers",), help="try numbers of loader workers, and say which to take")


def _show(sub: CliParser) -> None:
    sub.add_argument("--explain", nargs="?", const="", metavar="KEY", help="what a key means; without KEY, each key")


def _configs(sub: CliParser) -> None:
    sub.add_argument("name", nargs="?", metavar="NAME", help="default: list them")
    sub.add_argument("--to", metavar="DIR", help="copy it into this folder, with the program beside it")


def _fake(sub: CliParser) -> None:
    from clusterdp.cli import fake

    fake.add_to(sub)


def _completion(sub: CliParser) -> None:
    sub.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


VERBS = (
    Verb(
        "init",
        verbs.init,
        "write files to begin with: a train script, its config, and a site profile of this cluster",
        "clusterdp init",
        add=_init,
    ),
    Verb(
        "check",
        verbs.check,
        "what would go wrong: limits, preemption, signals, storage, the program itself",
        "clusterdp check train.yaml resources.nodes=4",
        ("config", "overrides", "--json"),
        _check,
    ),
    Verb(
        "submit",
        sending.submit,
        "submit a run or a sweep",
        "clusterdp submit train.yaml params.lr=0.1 resources.nodes=4",
        ("config", "overrides", *SENDING),
        _submit,
    ),
    Verb(
        "rehearse",
        verbs.rehearse,
        "break a job here on purpose: does it end as without preemptions, time limits and failures?",
        "clusterdp rehearse train.yaml --only preempted",
        ("optional config", "overrides"),
        _rehearse,
    ),
    Verb(
        "resume",
        sending.resume,
        "go on with a run: from its checkpoints, as a new job",
        "clusterdp resume 4242 resources.time=8:00:00",
        ("named run", "overrides", *SENDING),
        _resume,
    ),
    Verb(
        "again",
        sending.again,
        "submit a run once more: a new run, with the config and the code of another as they were",
        "clusterdp again 4242 params.lr=0.01",
        ("named run", "overrides", *SENDING),
    ),
    Verb("stop", verbs.stop, "save, and end until resumed", "clusterdp stop 4242", ("named run",)),
    Verb("cancel", verbs.cancel, "end a run for good", "clusterdp cancel 4242", ("named run",), _cancel),
    Verb(
        "list",
        verbs.list_,
        "my runs, the newest first: those of this folder, or --all",
        "clusterdp list --state running,failed --since 3d",
        ("--json",),
        _list,
    ),
    Verb("top", verbs.top, "all runs on one screen: a table that stays current, with keys", "clusterdp top", add=_top),
    Verb(
        "status",
        verbs.status,
        "how a run is doing",
        "clusterdp status runs/digits-20260131-235959-1f2e",
        ("run", "--json"),
    ),
    Verb(
        "why",
        verbs.why,
        "why a run waits or failed: the first error of all ranks, its cause, and what to do",
        "clusterdp why 4242",
        ("run", "--json"),
    ),
    Verb("watch", verbs.watch, "follow a run to its end: and exit as it does", "clusterdp watch 4242", ("run",)),
    Verb(
        "logs",
        verbs.logs,
        "what the ranks printed",
        "clusterdp logs -f --rank 3    clusterdp logs 4242 --errors",
        ("run",),
        _logs,
    ),
    Verb(
        "shell", verbs.shell, "a shell at a rank: on its node", "clusterdp shell 4242 --rank 3", ("named run",), _rank
    ),
    Verb(
        "exec",
        verbs.exec_,
        "run a program at a rank: in its environment and folder, beside it",
        "clusterdp exec 4242 --all -- nvidia-smi",
        ("named run",),
        _exec,
    ),
    Verb(
        "stacks",
        verbs.stacks,
        "where the ranks are: the stacks of all threads, now",
        "clusterdp stacks 4242 --rank 0,3",
        ("run",),
        _stacks,
    ),
    Verb(
        "sweep",
        verbs.sweep,
        "the results of a sweep: best first",
        "clusterdp sweep runs/digits-20260131-235959-1f2e --by val_loss",
        ("run", "overrides"),
        _sweep,
    ),
    Verb(
        "goodput",
        verbs.goodput,
        "where its time went: the allocated time of a run, and what interruptions cost",
        "clusterdp goodput 4242    clusterdp goodput --since 30d --all",
        ("run", "--json"),
        _goodput,
    ),
    Verb(
        "plot",
        verbs.plot,
        "metrics as curves: in the terminal or as a picture",
        "clusterdp plot 4242 loss lr -o curves.png",
        add=_plot,
    ),
    Verb(
        "report",
        verbs.report,
        "runs as one HTML page: attempts, curves, where the time went, config, code",
        "clusterdp report runs/first runs/second -o both.html",
        add=_report,
    ),
    Verb(
        "diff",
        verbs.diff,
        "how two runs differ: config, code, packages, metrics",
        "clusterdp diff runs/first runs/second",
        ("--json",),
        _diff,
    ),
    Verb(
        "note",
        verbs.note,
        "write a line about a run: status and list show it; without a line, print it",
        "clusterdp note 4242 baseline, lr was too high",
        ("named run",),
        _note,
    ),
    Verb(
        "rm",
        verbs.rm,
        "remove runs that are over: with their checkpoints",
        "clusterdp rm runs/digits-20260131-235959-1f2e",
        add=_rm,
    ),
    Verb("checkpoint", None, "list checkpoints: also verify, compare, export and prune them", add=_checkpoint),
    Verb(
        "profile",
        sending.profile,
        "where a step's time goes: run some steps of a job, and measure",
        "clusterdp profile train.yaml --find workers",
        ("config", "overrides", "--cluster"),
        _profile,
    ),
    Verb(
        "show",
        verbs.show,
        "print a resolved config: the values that are set, with their sources; or explain its keys",
        "clusterdp show train.yaml    clusterdp show --explain checkpoint.every_s",
        ("optional config", "overrides"),
        _show,
    ),
    Verb(
        "configs",
        verbs.configs,
        "the example configs: list them, print one, or copy one with its program",
        "clusterdp configs digits > my.yaml    clusterdp configs gan --to mine",
        add=_configs,
    ),
    Verb("fake", None, "a fake Slurm cluster here: on this machine, by hand", add=_fake),
    Verb(
        "completion",
        verbs.complete,
        "complete words on TAB: print what a shell needs",
        'eval "$(clusterdp completion bash)"',
        add=_completion,
    ),
)
