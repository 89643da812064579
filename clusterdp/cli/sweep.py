"""`clusterdp submit --sweep`, and `clusterdp sweep`."""

from __future__ import annotations

import csv
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterdp.errors import RunError, SubmitError
from clusterdp.rundir import RunDir, SweepDir
from clusterdp.wording import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from clusterdp.config import Given
    from clusterdp.operate.output.formatting import Colour
    from clusterdp.operate.sweep.elements import ElementStatus, SweepStatus
    from clusterdp.operate.sweep.results import Ranking
    from clusterdp.submission.sweep.arrays import SentSweep
    from clusterdp.submission.sweep.plan import SweepPlan

    Resume = Callable[[RunDir, argparse.Namespace], int]


def submit(given: Given, options: argparse.Namespace) -> int:
    """Submits the sweep, prints its jobs, and follows the sweep if --watch is given."""
    from clusterdp.check.at_submit import tell_errors
    from clusterdp.submission.sweep.plan import make_sweep_plan

    plan = make_sweep_plan(given)
    tell_errors(plan.spec, given.sources, len(plan.sweep.elements))
    if options.dry_run:
        _print_plan(plan, named=bool(plan.spec.config.run_dir))
        return 0
    if options.cluster == "local":
        from clusterdp.cli import local_cluster

        return local_cluster.run_sweep(plan, lambda: _send(plan))
    from clusterdp.slurm import commands

    if options.cluster == "auto" and not commands.have_slurm():
        raise SubmitError("--cluster auto: no sbatch here. `--cluster local` runs it on this machine.")
    sent = _send(plan)
    if options.watch:
        from clusterdp.operate.sweep.watch import watch_sweep

        return watch_sweep(sent.folder)
    from clusterdp.operate.output.formatting import shown_path

    path = shown_path(plan.folder.path)
    print(f"Follow it: clusterdp watch {path}    Stop it: clusterdp cancel {path}")
    return SubmitError.exit_code if sent.refused else 0


def _print_plan(plan: SweepPlan, named: bool) -> None:
    """Prints the script that sbatch would get on stdout, and the elements and their folder on stderr."""
    from clusterdp.operate.output.terminal import exact
    from clusterdp.operate.sweep.elements import values_table

    exact(sys.stdout).write(plan.scripts[0][1].text)
    sys.stdout.flush()
    for array, _ in plan.scripts[1:]:
        name = plan.folder.script(array.offset).name
        print(f"clusterdp: {name} is the same for elements {array.offset} and on.", file=sys.stderr)
    print("\n".join(values_table({each.number: each.values for each in plan.sweep.elements})), file=sys.stderr)
    print(f"clusterdp: {counted(len(plan.sweep.elements), 'element')}, in {plan.folder.path}", file=sys.stderr)
    if waits := " ".join(plan.after_options()):
        print(f"clusterdp: sbatch gets {waits}", file=sys.stderr)
    if not named:
        print("clusterdp: this name is another each time. Set run_dir=NAME.", file=sys.stderr)


def _send(plan: SweepPlan) -> SentSweep:
    from clusterdp.operate.find.run_index import remember

    sent, taken = plan.carry_out()
    remember(plan.folder.files, sent.arrays)
    jobs = ", ".join(sent.arrays)
    print(f"Submitted job {jobs}: {counted(len(sent.jobs), 'element')} in {plan.folder.path}")
    if taken:
        print(taken)
    if sent.refused:
        print(f"clusterdp: {sent.refused} `clusterdp sweep {plan.folder.path} --retry unsubmitted`", file=sys.stderr)
    return sent


def status(run: RunDir, as_json: bool = False) -> int:
    """Prints the state of each element, for `clusterdp status` of a sweep."""
    from clusterdp.operate.output.formatting import Colour, shown_path
    from clusterdp.operate.output.terminal import width_of
    from clusterdp.operate.record.next_command import command_lines
    from clusterdp.operate.sweep.elements import read_sweep, status_table

    found = read_sweep(SweepDir(run.path))
    if as_json:
        return _print_json(found, found.elements)
    colour, columns = Colour(sys.stdout), width_of(sys.stdout)
    results = (f"clusterdp sweep {shown_path(run.path)}", "its results, best first")
    _print_headline(found, colour)
    print("\n".join(["", *status_table(found.elements, colour, width=columns)]))
    _print_reasons(found.elements, colour, columns)
    print()
    print("\n".join(command_lines([results], colour, columns)))
    return 0


def sweep(options: argparse.Namespace, run: RunDir, resume: Resume) -> int:
    """Prints the results of a sweep, the best element first, for `clusterdp sweep`. The function `resume` resumes a run
    as `clusterdp resume` does."""
    from clusterdp.operate.output.formatting import Colour
    from clusterdp.operate.output.terminal import filled, width_of
    from clusterdp.operate.sweep.elements import read_sweep, status_table, sweep_meant
    from clusterdp.operate.sweep.results import as_rows, best_first, columns

    found = read_sweep(sweep_meant(run))
    if options.retry:
        return _retry(found, options, resume)
    ranking = best_first(found.elements, options.by or "", options.lower)
    if options.top is not None:
        ranking = replace(ranking, elements=ranking.elements[: options.top])
    if options.resume:
        return _resume_best(ranking, options, resume)
    if options.json:
        return _print_json(found, ranking.elements, metric=ranking.metric or None, lower_is_best=ranking.lower)
    elif options.csv:
        rows = as_rows(ranking.elements)
        writer = csv.DictWriter(sys.stdout, columns(rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        colour, width = Colour(sys.stdout), width_of(sys.stdout)
        words = ranking.in_words() if ranking.metric else "No element has measured anything."
        _print_headline(found, colour)
        table = status_table(ranking.elements, colour, ranking.metrics, width)
        print("\n".join(["", *table, "", *filled("", words, width)]))
        _print_reasons(ranking.elements, colour, width)
    return 0


def why(run: RunDir, as_json: bool) -> int:
    """Prints the reasons of all elements that wait or failed, for `clusterdp why` of a sweep."""
    from clusterdp.operate.output.formatting import Colour, shown_path
    from clusterdp.operate.output.terminal import width_of
    from clusterdp.operate.record.run_state import NOT_DONE, RunState
    from clusterdp.operate.sweep.elements import read_sweep
    from clusterdp.operate.sweep.results import reason_lines
    from clusterdp.rundir import SweepDir

    found = read_sweep(SweepDir(run.path))
    if as_json:
        return _print_json(found, found.elements)
    colour = Colour(sys.stdout)
    _print_headline(found, colour)
    lines = reason_lines(found.elements, colour, width_of(sys.stdout), of_all=True)
    of_interest = [each for each in found.elements if each.status.state in (*NOT_DONE, RunState.WAITING)]
    one = next(iter(sorted(of_interest, key=lambda each: each.status.state is RunState.WAITING)), None)
    if one is not None:
        lines += ["", f"  clusterdp why {shown_path(run.path)}/{one.number}   # that element, with its log"]
    print("\n".join(["", *lines]))
    return 0


def _print_reasons(elements: Sequence[ElementStatus], colour: Colour, columns: int) -> None:
    from clusterdp.operate.sweep.results import reason_lines

    if lines := reason_lines(elements, colour, columns):
        print("\n".join(["", *lines]))


def _print_json(found: SweepStatus, elements: Sequence[ElementStatus], **ranked: Any) -> int:
    from clusterdp.operate.sweep.results import element_data

    sweep = {"name": found.name, "run": str(found.folder.path), "why": found.said, **ranked}
    json.dump({**sweep, "elements": [element_data(each) for each in elements]}, sys.stdout, indent=2)
    print()
    return 0


def _print_headline(found: SweepStatus, colour: Colour) -> None:
    from clusterdp.operate.output.terminal import filled, width_of
    from clusterdp.operate.sweep.elements import counts

    said = f" ({found.said})" if found.said else ""
    words = counts(found.elements, colour) + said
    print("\n".join(filled(f"{colour('bold', found.name)}  ", words, width_of(sys.stdout))))


def _retry(found: SweepStatus, options: argparse.Namespace, resume: Resume) -> int:
    """Submits elements with their own script one by one, as `resume` does, and every other element in an array of the
    sweep."""
    from clusterdp.operate.change.resume_check import uncancelled
    from clusterdp.operate.sweep.watch import to_retry, with_own_script
    from clusterdp.submission.resume import old_code
    from clusterdp.submission.send.lock import RunLock
    from clusterdp.submission.sweep.arrays import submit_again

    chosen = to_retry(found, options.retry)
    if not chosen:
        print(f"No element is {options.retry}.")
        return 0
    if options.dry_run:
        return _only_say(chosen)
    own = with_own_script(chosen)
    rest = [each for each in chosen if each not in own]
    if rest:
        if said := old_code(rest[0].history.run):
            print(said)
        with ExitStack() as stack:
            lock = stack.enter_context(RunLock(found.folder.files))
            for each in rest:
                stack.enter_context(RunLock(each.history.run))
                stack.enter_context(uncancelled(each.history.run))
            for job in submit_again(found.folder, [each.number for each in rest], lock):
                print(f"Resumed job {job.id}: {job.run.path}")
    for each in own:
        resume(each.history.run, options)
    return 0


def _resume_best(ranking: Ranking, options: argparse.Namespace, resume: Resume) -> int:
    """Resumes the best elements of a sweep, for --resume. All these elements are checked before the first element is
    resumed."""
    from clusterdp.operate.change.resume_check import check_resumable

    if not ranking.metric:
        raise RunError("--resume: no element has measured anything, so none is best. Name elements: clusterdp resume.")
    for each in ranking.elements:
        check_resumable(each.history.run)
    if options.dry_run:
        return _only_say(ranking.elements)
    for each in ranking.elements:
        resume(each.history.run, options)
    return 0


def _only_say(elements: Sequence[ElementStatus]) -> int:
    from clusterdp.operate.output.formatting import shown_path

    for each in elements:
        where = f"from step {each.history.saved[0]}" if each.history.saved else "from its beginning"
        print(f"would go on {where}: {shown_path(each.history.run.path)}")
    return 0
