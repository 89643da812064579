"""The verbs that submit nothing: they show runs, end runs, or show configs."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from clusterdp.cli.named import config_path, known_run, named_run
from clusterdp.cli.sending import follow, resume_run
from clusterdp.errors import ConfigError

if TYPE_CHECKING:
    from clusterdp.rundir import RunDir


def show(options: argparse.Namespace) -> int:
    if options.explain is not None:
        from clusterdp.config.explain import explain

        print(explain(options.explain))
        return 0
    if options.config is None:
        raise ConfigError("CFG.yaml: is missing. Write clusterdp show train.yaml, or clusterdp show --explain KEY.")
    from clusterdp import config
    from clusterdp.submission.show import annotated

    loaded = config.load_with_sources(config_path(options.config), options.overrides)
    sys.stdout.write(annotated(loaded))
    return 0


def rehearse(options: argparse.Namespace) -> int:
    from clusterdp.cli import rehearse

    return rehearse.rehearse(options)


def check(options: argparse.Namespace) -> int:
    from pathlib import Path

    from clusterdp.check.check import check as check_run
    from clusterdp.check.show_check import show_check
    from clusterdp.submission.plan import read_given

    path = config_path(options.config)
    given = read_given(path, options.overrides, options.sweep, options.after)
    checked = check_run(given, Path(path), options.probe)
    show_check(checked, sys.stdout, options.json)
    return 1 if checked.fails else 0


def init(options: argparse.Namespace) -> int:
    from pathlib import Path

    from clusterdp.submission.init import plan, write

    if (host := options.on[-1] if options.on else "here") != "here":
        from clusterdp.remote.proposal import propose

        files, said = propose(host)
        print("\n".join(said))
        if not options.dry_run:
            print("\n".join(write(files)))
            return 0
    else:
        files = plan(Path(options.folder))
    if options.dry_run:
        print("\n".join(f"==> {file.path} <==\n{file.text}" for file in files), end="")
        return 0
    _say_written(write(files), options.folder, "train.yaml")
    return 0


def _say_written(lines: list[str], folder: str, config: str) -> None:
    print("\n".join(lines))
    where = "" if folder == "." else f"cd {shlex.quote(folder)} && "
    print(f"\nTry it here: {where}clusterdp submit {config} --cluster local")


def configs(options: argparse.Namespace) -> int:
    from clusterdp.submission.render.shipped_files import example_files, shipped_folder

    if options.to is not None:
        from clusterdp.submission.init import plan_example, write

        if not options.name:
            raise ConfigError("NAME: is missing. Write e.g. clusterdp configs gan --to DIR.")
        files = plan_example(options.name, options.to)
        _say_written(write(files), options.to, files[0].path.name)
        return 0
    if options.name:
        config, *program = example_files(options.name)
        sys.stdout.write(config.read_text())
        if program:
            remedy = f"`clusterdp configs {config.stem} --to DIR` copies both."
            print(f"clusterdp: {config.name}: needs {program[0].name}. {remedy}", file=sys.stderr)
        return 0
    for path in sorted(shipped_folder("configs").glob("*.yaml")):
        about = path.read_text().splitlines()[0].lstrip("# ")
        print(f"{path.stem:20} {about}")
    print("\nclusterdp configs NAME > my.yaml   prints one")
    print("clusterdp configs NAME --to DIR    copies one into a folder, with the program beside it")
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
    wanted = Wanted(filters, options.all, options.limit, options.json)
    if options.watch:
        from clusterdp.operate.listing.watch_runs import watch_runs

        if options.json:
            raise ConfigError("--json: does not go with --watch, which is for people. Leave one out.")
        watch_runs(wanted, sys.stdout, sys.stderr)
    list_runs(wanted, sys.stdout, sys.stderr)
    return 0


def top(options: argparse.Namespace) -> int:
    import os
    from contextlib import ExitStack, closing
    from importlib.util import find_spec

    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        from clusterdp.operate.listing.list_runs import Wanted
        from clusterdp.operate.listing.watch_runs import watch_runs

        watch_runs(Wanted(everywhere=options.all), sys.stdout, sys.stderr)
    if find_spec("textual") is None:
        words = "clusterdp list --watch" + " --all" * options.all
        raise ConfigError(
            f"top: Textual is not installed. pip install 'clusterdp[top]'. `{words}` needs nothing, and shows less."
        )
    from clusterdp.operate.top.app import Top
    from clusterdp.operate.top.source import LocalSource, Source
    from clusterdp.site_profile import HERE, default_host

    hosts = dict.fromkeys(options.on or [default_host() or HERE])
    with ExitStack() as stack:
        sources: list[Source] = [
            LocalSource(options.all)
            if host == HERE
            else stack.enter_context(closing(options.remote_source(host, options.all)))
            for host in hosts
        ]
        Top(sources).run()
    return 0


def status(options: argparse.Namespace) -> int:
    from clusterdp.operate.status.show_status import show_status
    from clusterdp.rundir import is_sweep

    run = known_run(options.run, sweeps=True)
    if is_sweep(run.path):
        from clusterdp.cli import sweep

        return sweep.status(run, as_json=options.json)
    show_status(run, sys.stdout, as_json=options.json)
    return 0


def why(options: argparse.Namespace) -> int:
    from clusterdp.operate.why.show_why import show_why
    from clusterdp.rundir import is_sweep

    run = known_run(options.run, sweeps=True)
    if is_sweep(run.path):
        from clusterdp.cli import sweep

        return sweep.why(run, as_json=options.json)
    show_why(run, sys.stdout, as_json=options.json)
    return 0


def goodput(options: argparse.Namespace) -> int:
    from clusterdp.operate.account.goodput import show_goodput

    if options.all or options.since or options.csv:
        from clusterdp.operate.listing.costs import show_costs

        if options.run or options.json:
            word = "--json" if options.json else options.run
            raise ConfigError(
                f"{word}: does not go with --all, --since and --csv, which are for many runs. Leave it out."
            )
        show_costs(options.since, options.all, options.csv, sys.stdout, sys.stderr)
        return 0
    show_goodput(known_run(options.run), sys.stdout, as_json=options.json)
    return 0


def diff(options: argparse.Namespace) -> int:
    from clusterdp.operate.compare.diff import show_diff

    show_diff(known_run(options.first), known_run(options.second), sys.stdout, as_json=options.json)
    return 0


def plot(options: argparse.Namespace) -> int:
    from clusterdp.operate.compare.plot import plot as plot_metrics

    plot_metrics(known_run(options.run), options.metrics, sys.stdout, options.file)
    return 0


def report(options: argparse.Namespace) -> int:
    from clusterdp.operate.find.find_run import find_run
    from clusterdp.operate.report.page import write_report

    print(write_report([find_run(word) for word in options.runs or [None]], options.file))
    return 0


def watch(options: argparse.Namespace) -> int:
    from clusterdp.rundir import SweepDir, is_sweep

    run = known_run(options.run, sweeps=True)
    if is_sweep(run.path):
        from clusterdp.operate.sweep.watch import watch_sweep

        return watch_sweep(SweepDir(run.path))
    return follow(run)


def logs(options: argparse.Namespace) -> int:
    from clusterdp.cli import logs

    return logs.logs(options)


def shell(options: argparse.Namespace) -> int:
    import os

    from clusterdp.operate.beside.ranks import run_beside

    words = [os.environ.get("SHELL") or "bash"] if sys.stdin.isatty() else ["bash"]
    return run_beside(named_run("shell", options.run), words, options.rank, False, sys.stdin.isatty())


def exec_(options: argparse.Namespace) -> int:
    from clusterdp.operate.beside.ranks import run_beside

    if not options.words:
        raise ConfigError("exec: names no program. Write e.g. clusterdp exec RUN --rank 3 -- nvidia-smi.")
    return run_beside(named_run("exec", options.run), options.words, options.rank, options.all, False)


def stacks(options: argparse.Namespace) -> int:
    from clusterdp.operate.beside.ranks import show_stacks
    from clusterdp.operate.logs.choice import Ranks

    chosen = Ranks.read(options.rank) if options.rank else None
    return show_stacks(known_run(options.run), chosen, sys.stdout)


def stop(options: argparse.Namespace) -> int:
    from clusterdp.operate.change.stop import stop as stop_run
    from clusterdp.rundir import SweepDir, is_sweep

    run = named_run("stop", options.run, sweeps=True)
    if is_sweep(run.path):
        from clusterdp.operate.change.end_sweep import stop_sweep

        print(stop_sweep(SweepDir(run.path)))
        return 0
    print(stop_run(run))
    return 0


def cancel(options: argparse.Namespace) -> int:
    from clusterdp.operate.queue.predecessor import followers
    from clusterdp.operate.queue.run_cluster import put_on_path

    run = named_run("cancel", options.run, ["--with-followers"] if options.with_followers else [], sweeps=True)
    for each in [*(followers(run) if options.with_followers else ()), run]:  # the last first: none of them starts
        put_on_path(each)
        print(_cancelled(each))
    return 0


def _cancelled(run: RunDir) -> str:
    from clusterdp.rundir import SweepDir, is_sweep

    if is_sweep(run.path):
        from clusterdp.operate.change.end_sweep import cancel_sweep

        return cancel_sweep(SweepDir(run.path))
    from clusterdp.operate.change.cancel import cancel as cancel_run

    return cancel_run(run).rstrip()


def note(options: argparse.Namespace) -> int:
    from clusterdp.operate.record.note import read_note, write_note

    run = named_run("note", options.run, options.text, sweeps=True)
    if options.clear and options.text:
        raise ConfigError(f"--clear: there is a text as well, {options.text[0]!r}. Give one of them.")
    if options.text or options.clear:
        print(write_note(run, " ".join(options.text)))
    elif text := read_note(run):
        print(text)
    return 0


def rm(options: argparse.Namespace) -> int:
    if not options.runs:
        named_run("rm", None)
    from clusterdp.cli import rm as removing

    return removing.rm(options)


def sweep(options: argparse.Namespace) -> int:
    from clusterdp.cli import sweep

    acts = options.retry or options.resume
    others = [f"--retry {options.retry}"] if options.retry else ["--resume", *options.overrides] if acts else []
    if options.overrides and not options.resume:
        raise ConfigError(f"{options.overrides[0]}: is for elements that go on. Write it with --top 3 --resume.")
    if options.top is not None and options.top < 1:
        raise ConfigError(f"--top {options.top}: is not a number of elements. Write 1 or more.")
    if options.retry and (options.top is not None or options.by):
        other = f"--by {options.by}" if options.top is None else f"--top {options.top}"
        raise ConfigError(f"{other}: does not go with --retry, which takes all elements in a state. Leave it out.")
    if options.dry_run and not acts:
        raise ConfigError("--dry-run: is for --retry and --resume. Without them nothing is submitted.")
    if options.resume and options.top is None:
        raise ConfigError("--resume: say how many of the best: --top 3 --resume.")
    run = named_run("sweep", options.run, others, sweeps=True) if acts else known_run(options.run, sweeps=True)
    return sweep.sweep(options, run, resume_run)
