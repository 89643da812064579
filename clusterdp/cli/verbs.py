"""The verbs of the command line. Each imports what it needs when it runs: `--help` and `status` start at once.

Exit codes: 0 done; 1 the job failed, or checkpoints are bad or differ; 2 a mistake in the config or the words; 3 Slurm
said no; 4 no such run, or not now; 5 checkpoints; 6 the ranks did not meet; 7 the fake cluster; 130 Ctrl-C; 143 the job
was cancelled.
"""

from __future__ import annotations

import argparse
import gc
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clusterdp import __version__
from clusterdp.cli import streams
from clusterdp.cli.parser import CliParser
from clusterdp.errors import ClusterdpError, ConfigError, OutputError, RunError, SubmitError

if TYPE_CHECKING:
    from clusterdp.launch.job import Job
    from clusterdp.launch.lock import RunLock
    from clusterdp.launch.plan import Plan
    from clusterdp.rundir import RunDir

EPILOG = """\
  clusterdp submit train.yaml params.lr=0.1     submit; values of the file can be overridden
  clusterdp submit train.yaml --dry-run         print the script instead
  clusterdp submit train.yaml --cluster local   run it here, on a fake cluster
  clusterdp status                              how the latest run is doing
RUN is a run folder, a job id, or nothing for the latest run of this folder; stop, cancel, resume, note and rm want it
named."""

SHARED: dict[str, dict[str, Any]] = {  # arguments of several verbs; the last word is the argument
    "config": {"metavar": "CFG.yaml"},
    "optional config": {"metavar": "CFG.yaml", "nargs": "?"},
    "overrides": {"nargs": "*", "default": [], "metavar": "key=value"},
    "run": {"nargs": "?", "metavar": "RUN"},
    "named run": {"nargs": "?", "metavar": "RUN", "help": "must be named; without it the latest is shown"},
    "--dry-run": {"action": "store_true", "help": "print the script; write and submit nothing"},
    "--cluster": {"choices": ("auto", "slurm", "local"), "default": "auto", "help": "local: a fake one, here"},
    "--watch": {"action": "store_true", "help": "follow the run to its end, and exit as it does"},
}


def main(words: Sequence[str] | None = None) -> int:
    # Imports and configs make objects that stay. Looking for garbage among them takes a tenth of the start of a verb.
    gc.set_threshold(100_000)
    with streams.prepared():
        return _main(sys.argv[1:] if words is None else words)


def _main(words: Sequence[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:
        from clusterdp.cli import completion

        completion.answer(parser())
    debug = False
    try:
        options = _options(words)
        debug = options.debug
        code: int = options.verb(options)
        sys.stdout.flush()  # here, where a closed pipe can still be handled
        return code
    except BrokenPipeError:  # `clusterdp logs | head`
        streams.abandon(sys.stdout)
        return 141
    except KeyboardInterrupt:
        return 130
    except (ClusterdpError, UnicodeEncodeError, OSError) as error:
        if debug:
            raise
        if isinstance(error, OutputError):
            streams.abandon(sys.stdout)
        streams.complain(error)
        return error.exit_code if isinstance(error, ClusterdpError) else 2 if isinstance(error, ValueError) else 4


def _options(words: Sequence[str]) -> argparse.Namespace:
    top = parser(words)
    try:
        options, rest = top.parse_known_args(words or ["--help"])
    except SystemExit:  # of --help
        sys.stdout.flush()
        raise
    # argparse takes a list of words in one place only: `submit cfg.yaml --watch lr=1` leaves lr=1 over.
    many = next((name for name in ("overrides", "runs", "metrics") if name in options), "")
    if any(word.startswith("-") for word in rest) or (rest and not many):
        at = next((i for i, word in enumerate(rest) if word.startswith("-")), 0)
        options.parser.error(f"unrecognized arguments: {' '.join(rest[at:])}")
    if rest:
        setattr(options, many, [*getattr(options, many), *rest])
    return options


def parser(words: Sequence[str] | None = None) -> CliParser:
    """The parser of any words, or of these alone: the verbs below a verb that is not among them are left out, for each
    costs some time."""
    top = CliParser(
        prog="clusterdp",
        description="One YAML file in; a multi-node PyTorch training out, on any Slurm cluster, that cannot lose work.",
        epilog=EPILOG,
        example="clusterdp submit train.yaml",
    )
    top.add_argument("-V", "--version", action="version", version=f"clusterdp {__version__}")
    top.add_argument("--debug", action="store_true", help="show a traceback with an error")
    verbs = top.add_subparsers(title="verbs", metavar="VERB", required=True)

    def verb(name: str, run: Any, about: str, example: str = "", *shared: str) -> CliParser:
        """shared: arguments of SHARED that it takes."""
        sub: CliParser = verbs.add_parser(name, help=about, description=about, example=example)
        sub.set_defaults(verb=run, parser=sub)
        for argument in shared:
            sub.add_argument(argument.rpartition(" ")[2], **SHARED[argument])
        return sub

    sending = ("--dry-run", "--cluster", "--watch")
    example = "clusterdp submit train.yaml params.lr=0.1 resources.nodes=4"
    sub = verb("submit", submit, "submit a run, or a sweep of runs", example, "config", "overrides", *sending)
    about = "a run for each value: KEY=0.1,0.01 or KEY=range(5); may be given again, for other keys"
    sub.add_argument("--sweep", action="append", default=[], metavar="KEY=VALUES", help=about)
    about = "run some steps of a job, and say where the time goes"
    example = "clusterdp profile train.yaml --find workers"
    sub = verb("profile", profile, about, example, "config", "overrides", "--cluster")
    sub.add_argument("--steps", type=int, metavar="N", help="default: 50; 20 for each batch size")
    sub.add_argument("--find", choices=("batch-size", "workers"), help="try some out, and say which to take")
    about = "print a config as it resolves, with the source of each value; or explain its keys"
    example = "clusterdp show train.yaml    clusterdp show --explain checkpoint.every_s"
    sub = verb("show", show, about, example, "optional config", "overrides")
    sub.add_argument("--explain", nargs="?", const="", metavar="KEY", help="what a key means; without KEY, each key")
    about = "write a train script, its config, and a site profile of this cluster, to begin with"
    sub = verb("init", init, about, "clusterdp init")
    sub.add_argument("folder", nargs="?", default=".", metavar="DIR", help="default: this one")
    sub.add_argument("--dry-run", action="store_true", help="print them instead")
    about = "list the example configs of the package, or print one"
    sub = verb("configs", configs, about, "clusterdp configs digits > my.yaml")
    sub.add_argument("name", nargs="?", metavar="NAME")
    about = "my runs, the newest first: those of this folder, or --all"
    sub = verb("list", list_, about, "clusterdp list --state running,failed --since 3d")
    sub.add_argument("--all", action="store_true", help="also the runs of other folders")
    sub.add_argument("--state", metavar="STATES", help="e.g. running,failed")
    sub.add_argument("--name", metavar="GLOB", help="e.g. 'digits-*'")
    sub.add_argument("--tag", metavar="WORD", help="that is in its note")
    sub.add_argument("--since", metavar="WHEN", help="submitted since: 12h, 3d, 2w or 2026-01-31")
    sub.add_argument("-n", type=int, dest="limit", metavar="N", help="default: 20 on a terminal, else all; 0: all")
    sub.add_argument("--json", action="store_true", help="for programs")
    sub = verb("status", status, "how a run is doing", "clusterdp status runs/digits-20260131-235959-1f2e", "run")
    sub.add_argument("--json", action="store_true", help="for programs")
    about = "why a run waits, or failed: the first error of all ranks, its cause, and what to do"
    sub = verb("why", why, about, "clusterdp why 4242", "run")
    sub.add_argument("--json", action="store_true", help="for programs")
    about = "where the allocated time of a run went, and what its interruptions cost"
    sub = verb("goodput", goodput, about, "clusterdp goodput 4242", "run")
    sub.add_argument("--json", action="store_true", help="for programs")
    verb("watch", watch, "follow a run to its end, and exit as it does", "clusterdp watch 4242", "run")
    about = "print what the ranks printed"
    sub = verb("logs", logs, about, "clusterdp logs -f --rank 3    clusterdp logs 4242 --errors", "run")
    if words is None or "logs" in words:
        from clusterdp.cli import logs as of_logs

        of_logs.add_to(sub)
    about = "the results of a sweep, best first"
    example = "clusterdp sweep runs/digits-20260131-235959-1f2e --by val_loss"
    sub = verb("sweep", sweep, about, example, "run", "overrides")
    sub.set_defaults(step=None, dry_run=False, cluster="auto", watch=False)  # of --resume, which is as `resume` is
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
    verb("stop", stop, "have a run save, and end it until it is resumed", "clusterdp stop 4242", "named run")
    verb("cancel", cancel, "end a run for good", "clusterdp cancel 4242", "named run")
    about = "write a line about a run, which status and list show; without one, print it"
    sub = verb("note", note, about, "clusterdp note 4242 baseline, lr was too high", "named run")
    sub.add_argument("text", nargs="*", metavar="TEXT", help="an empty one removes the note")
    sub.add_argument("--clear", action="store_true", help="remove the note")
    about = "remove runs that are over, with their checkpoints"
    sub = verb("rm", rm, about, "clusterdp rm runs/digits-20260131-235959-1f2e")
    sub.add_argument("runs", nargs="*", metavar="RUN", help="must be named")
    sub.add_argument("--dry-run", action="store_true", help="say what would go")
    sub.add_argument("--yes", action="store_true", help="do not ask")
    about = "go on with a run from its checkpoints, as a new job"
    example = "clusterdp resume 4242 resources.time=8:00:00"
    sub = verb("resume", resume, about, example, "named run", "overrides", *sending)
    sub.add_argument("--from", dest="step", type=int, metavar="STEP", help="go on from this step, not the newest")
    about = "print what a shell needs to complete words on TAB"
    sub = verb("completion", complete, about, 'eval "$(clusterdp completion bash)"')
    sub.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")
    about = "submit a new run from the record of another: its config and its code as it was"
    verb("again", again, about, "clusterdp again 4242 params.lr=0.01", "named run", "overrides", *sending)
    about = "how two runs differ: config, code, packages, metrics"
    sub = verb("diff", diff, about, "clusterdp diff runs/first runs/second")
    sub.add_argument("first", metavar="RUN")
    sub.add_argument("second", metavar="RUN")
    sub.add_argument("--json", action="store_true", help="for programs")
    about = "metrics of a run as curves, in the terminal or as a picture"
    sub = verb("plot", plot, about, "clusterdp plot 4242 loss lr -o curves.png")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("metrics", nargs="*", default=[], metavar="METRIC", help="default: what people look for first")
    sub.add_argument("-o", dest="file", metavar="FILE.png", help="a picture instead: .png, .svg or .pdf")
    about = "runs as one HTML page: attempts, curves, where the time went, config, code"
    sub = verb("report", report, about, "clusterdp report runs/first runs/second -o both.html")
    sub.add_argument("runs", nargs="*", default=[], metavar="RUN", help="default: the latest")
    sub.add_argument("-o", dest="file", metavar="FILE.html", help="default: report-NAME.html, here")
    sub = verb("checkpoint", None, "list, verify, compare, export and prune checkpoints")
    if words is None or "checkpoint" in words:
        from clusterdp.cli import checkpoint

        checkpoint.add_to(sub)
    sub = verb("fake", None, "a fake Slurm cluster on this machine, by hand")
    if words is None or "fake" in words:
        from clusterdp.cli import fake

        fake.add_to(sub)
    return top


def submit(options: argparse.Namespace) -> int:
    from clusterdp import config
    from clusterdp.launch.plan import make_plan

    given = config.read(_config_path(options.config), options.overrides, options.sweep)
    if given.sweeps:
        from clusterdp.cli import sweep

        return sweep.submit(given, options)
    loaded = config.resolve(given).config
    plan = make_plan(loaded)
    if options.dry_run:
        _print_script(plan, named=bool(loaded.run_dir))
        return 0
    return _send(plan, options)


def _print_script(plan: Plan, named: bool) -> None:
    from clusterdp.operate.terminal import exact

    exact(sys.stdout).write(plan.script.text)
    if not named:
        print(f"clusterdp: {plan.run.path}: this name is another each time. Set run_dir=NAME.", file=sys.stderr)


def profile(options: argparse.Namespace) -> int:
    from clusterdp.cli import profile

    return profile.profile(options, _config_path(options.config), _send)


def resume(options: argparse.Namespace) -> int:
    back = [] if options.step is None else ["--from", str(options.step)]
    return resume_run(_named_run("resume", options.run, [*options.overrides, *back]), options)


def resume_run(run: RunDir, options: argparse.Namespace) -> int:
    """`options`: those of `clusterdp resume`."""
    from clusterdp.launch.lock import RunLock
    from clusterdp.launch.resume import changes_the_work, plan_again
    from clusterdp.operate.resume_check import check_resumable, nothing_left

    plan = plan_again(run, options.step, options.overrides)
    if options.dry_run:
        _print_script(plan, named=True)
        return 0
    if options.step is None and not changes_the_work(plan) and (said := nothing_left(run)):
        print(said)
        return 0
    with RunLock(run) as lock:  # until the job is submitted
        check_resumable(run, options.step, plan.spec.checkpoint_url)
        return _send(plan, options, lock)


def again(options: argparse.Namespace) -> int:
    from clusterdp.launch.again import plan_new

    old = _named_run("again", options.run, options.overrides)
    plan = plan_new(old, options.overrides)
    if options.dry_run:
        _print_script(plan, named=bool(plan.spec.config.run_dir))
        return 0
    if plan.code_of is None:
        print(f"clusterdp: {old.path}: has no snapshot. The code is that of {plan.spec.submit_dir}, as it is now.")
    return _send(plan, options)


def _send(plan: Plan, options: argparse.Namespace, lock: RunLock | None = None) -> int:
    """Submit, say what was submitted, and follow if asked. --cluster local always follows, for the cluster ends with
    this process.

    `lock`: of the run that is to be resumed, and released as soon as its job is submitted.
    """
    cluster = options.cluster
    if cluster == "auto":
        from clusterdp.slurm import commands

        if not commands.have_slurm():
            raise SubmitError("--cluster auto: no sbatch here. `--cluster local` runs it on this machine.")

    def send() -> Job:
        if lock:
            from clusterdp.launch.resume import send_again
            from clusterdp.operate.resume_check import uncancelled

            with uncancelled(plan.run):
                job, taken = send_again(plan, lock), None
            lock.release()
        else:
            job, taken = plan.carry_out()
        from clusterdp.operate.run_index import remember  # the job may be starting already

        remember(plan.run)
        print(f"{'Resumed' if lock else 'Submitted'} job {job.id}: {plan.run.path}")
        if taken:
            shared = f", {taken.files - taken.copied} of them shared with an earlier run" * (taken.copied < taken.files)
            print(f"Snapshot of the code: {taken.files} files, {taken.bytes / 1e6:.1f} MB{shared}")
            if taken.ignored:
                from clusterdp.launch.git_ignored import in_words

                print(in_words(taken.ignored))
        return job

    if cluster == "local":
        from clusterdp.cli import local_cluster

        return local_cluster.run(plan, send)
    job = send()
    if options.watch:
        return _follow(plan.run)
    print(f"Follow it: clusterdp watch {job.id}    Stop it: clusterdp cancel {job.id}")
    return 0


def _follow(run: Any) -> int:
    from clusterdp.operate.watch import watch

    return watch(run)


def show(options: argparse.Namespace) -> int:
    if options.explain is not None:
        from clusterdp.config.explain import explain

        print(explain(options.explain))
        return 0
    if options.config is None:
        raise ConfigError("CFG.yaml: is missing. Write clusterdp show train.yaml, or clusterdp show --explain KEY.")
    from clusterdp import config
    from clusterdp.launch.show import annotated

    loaded = config.load_with_sources(_config_path(options.config), options.overrides)
    sys.stdout.write(annotated(loaded))
    return 0


def init(options: argparse.Namespace) -> int:
    from pathlib import Path

    from clusterdp.launch.init import plan, write

    files = plan(Path(options.folder))
    if options.dry_run:
        print("\n".join(f"==> {file.path} <==\n{file.text}" for file in files), end="")
        return 0
    print("\n".join(write(files)))
    where = "" if options.folder == "." else f"cd {shlex.quote(options.folder)} && "
    print(f"\nTry it here: {where}clusterdp submit train.yaml --cluster local")
    return 0


def configs(options: argparse.Namespace) -> int:
    from clusterdp.launch.shipped_files import find_config, shipped_folder

    if options.name:
        sys.stdout.write(find_config(options.name).read_text())
        return 0
    for path in sorted(shipped_folder("configs").glob("*.yaml")):
        about = path.read_text().splitlines()[0].lstrip("# ")
        print(f"{path.stem:20} {about}")
    print("\nclusterdp configs NAME > my.yaml   starts from one")
    return 0


def complete(options: argparse.Namespace) -> int:
    from clusterdp.cli import completion

    sys.stdout.write(completion.script(options.shell))
    return 0


def list_(options: argparse.Namespace) -> int:
    import time

    from clusterdp.operate.listing.filters import make_filters
    from clusterdp.operate.listing.list_runs import Wanted, list_runs

    filters = make_filters(options.state, options.name, options.tag, options.since, time.time())
    list_runs(Wanted(filters, options.all, options.limit, options.json), sys.stdout, sys.stderr)
    return 0


def status(options: argparse.Namespace) -> int:
    from clusterdp.operate.status import show_status
    from clusterdp.rundir import is_sweep

    run = _run(options.run, sweeps=True)
    if is_sweep(run.path):
        from clusterdp.cli import sweep

        return sweep.status(run, as_json=options.json)
    show_status(run, sys.stdout, as_json=options.json)
    return 0


def why(options: argparse.Namespace) -> int:
    from clusterdp.operate.why.show_why import show_why

    show_why(_run(options.run), sys.stdout, as_json=options.json)
    return 0


def goodput(options: argparse.Namespace) -> int:
    from clusterdp.operate.account.goodput import show_goodput

    show_goodput(_run(options.run), sys.stdout, as_json=options.json)
    return 0


def diff(options: argparse.Namespace) -> int:
    from clusterdp.operate.diff import show_diff
    from clusterdp.operate.find_run import find_run

    show_diff(find_run(options.first), find_run(options.second), sys.stdout, as_json=options.json)
    return 0


def plot(options: argparse.Namespace) -> int:
    from clusterdp.operate.find_run import find_run
    from clusterdp.operate.plot import plot as plot_metrics

    plot_metrics(find_run(options.run), options.metrics, sys.stdout, options.file)
    return 0


def report(options: argparse.Namespace) -> int:
    from clusterdp.operate.find_run import find_run
    from clusterdp.operate.report.page import write_report

    print(write_report([find_run(word) for word in options.runs or [None]], options.file))
    return 0


def watch(options: argparse.Namespace) -> int:
    from clusterdp.rundir import SweepDir, is_sweep

    run = _run(options.run, sweeps=True)
    if is_sweep(run.path):
        from clusterdp.operate.sweep.watch import watch_sweep

        return watch_sweep(SweepDir(run.path))
    return _follow(run)


def logs(options: argparse.Namespace) -> int:
    from clusterdp.cli import logs

    return logs.logs(options, _run(options.run))


def stop(options: argparse.Namespace) -> int:
    from clusterdp.operate.stop import stop as stop_run
    from clusterdp.rundir import SweepDir, is_sweep

    run = _named_run("stop", options.run, sweeps=True)
    if is_sweep(run.path):
        from clusterdp.operate.sweep.ending import stop_sweep

        print(stop_sweep(SweepDir(run.path)))
        return 0
    print(stop_run(run))
    return 0


def cancel(options: argparse.Namespace) -> int:
    from clusterdp.operate.cancel import cancel as cancel_run
    from clusterdp.rundir import SweepDir, is_sweep

    run = _named_run("cancel", options.run, sweeps=True)
    if is_sweep(run.path):
        from clusterdp.operate.sweep.ending import cancel_sweep

        print(cancel_sweep(SweepDir(run.path)))
        return 0
    print(cancel_run(run).rstrip())
    return 0


def note(options: argparse.Namespace) -> int:
    from clusterdp.operate.note import read_note, write_note

    run = _named_run("note", options.run, options.text, sweeps=True)
    if options.clear and options.text:
        raise ConfigError(f"--clear: there is a text as well, {options.text[0]!r}. Give one of them.")
    if options.text or options.clear:
        print(write_note(run, " ".join(options.text)))
    elif text := read_note(run):
        print(text)
    return 0


def rm(options: argparse.Namespace) -> int:
    if not options.runs:
        _named_run("rm", None)
    from clusterdp.cli import rm as removing

    return removing.rm(options)


def sweep(options: argparse.Namespace) -> int:
    from clusterdp.cli import sweep

    acts = options.retry or options.resume
    others = [f"--retry {options.retry}"] if options.retry else ["--resume", *options.overrides] if acts else []
    if options.overrides and not options.resume:
        raise ConfigError(f"{options.overrides[0]}: is for elements that go on. Write it with --top 3 --resume.")
    if options.top is not None and options.top < 1:
        raise ConfigError(f"--top {options.top}: is no number of elements. Write 1 or more.")
    if options.resume and options.top is None:
        raise ConfigError("--resume: say how many of the best: --top 3 --resume.")
    run = _named_run("sweep", options.run, others, sweeps=True) if acts else _run(options.run, sweeps=True)
    return sweep.sweep(options, run, resume_run)


def _run(word: str | None, sweeps: bool = False) -> RunDir:
    """The run that is meant. What is asked about it is asked on its own cluster, if that is up here. sweeps: it may be
    the folder of a sweep. RunError if it is one and may not."""
    from clusterdp.operate.find_run import find_run
    from clusterdp.operate.run_cluster import put_on_path
    from clusterdp.rundir import is_sweep

    run = find_run(word)
    if is_sweep(run.path) and not sweeps:
        from clusterdp.operate.formatting import shown_path

        path = shown_path(run.path)
        raise RunError(f"{path}: is a sweep. Name an element, as {path}/0; `clusterdp sweep {path}` lists them.")
    put_on_path(run)
    return run


def _named_run(verb: str, word: str | None, others: Sequence[str] = (), sweeps: bool = False) -> RunDir:
    """The run, for a verb that cannot be undone: it must be named, for the latest may not be the one that is meant.
    ConfigError if it is not. `others`: the words after it."""
    missing = word is None or ("=" in word and not os.path.exists(word))
    if not missing:
        return _run(word, sweeps)
    from clusterdp.operate.formatting import shown_path

    rest = "".join(f" {shlex.quote(each)}" for each in [*filter(None, [word]), *others])
    run = shown_path(_run(None, sweeps=True).path)
    raise ConfigError(f"RUN: say which. The latest is {run}: `clusterdp {verb} {run}{rest}`")


def _config_path(word: str) -> str:
    """A file; or, away from a checkout, one of the configs that came with the package, as `configs/digits.yaml`."""
    is_ours = word.startswith("configs/") or not ("/" in word or word.endswith((".yaml", ".yml")))
    if not is_ours or os.path.exists(word):  # pathlib takes 10 ms
        return word
    from clusterdp.launch.shipped_files import find_config

    return str(find_config(word))
