"""Rehearsal: runs a shortened job twice undisturbed, and then under each drill, and makes a Verdict on each drill.

undisturbed   shows how many steps there are, how long they take, and which end state the job leaves
again         shows whether two such runs end in the same bits, or how far they are apart
each drill    a run of its own, on a fake cluster of its own
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from clusterdp.check.program import ProgramText, read_program, read_script
from clusterdp.checkpoint.format.manifest import list_checkpoints
from clusterdp.config import Config
from clusterdp.errors import CheckpointError, ConfigError, RunError
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.record.run_history import read_history
from clusterdp.rehearse import shortening
from clusterdp.rehearse.drills.table import DRILLS, Drill
from clusterdp.rehearse.judge.diagnosis import words_of_failure
from clusterdp.rehearse.judge.judge import attempts_of, differ, judge, why_missed
from clusterdp.rehearse.judge.reference import Reference, end_state
from clusterdp.rehearse.judge.second_run import (
    beside_another,
    left_outside,
    not_apart,
    shared_files,
    went_on,
)
from clusterdp.rehearse.judge.verdict import BAD, NOT_LANDED, AttemptRow, Verdict
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import is_checkpoint
from clusterdp.rehearse.observe.file_versions import VERSIONS
from clusterdp.rehearse.observe.printed_steps import read_steps
from clusterdp.rehearse.observe.warm_up import steps_of_warm_up
from clusterdp.rehearse.one_run import CUT_SHORT
from clusterdp.rehearse.run_process import RunProcesses
from clusterdp.rehearse.run_spec import TICK_S, RunResult, RunSpec
from clusterdp.rehearse.state import best_models, candidates, check_patterns, compare
from clusterdp.rundir import RunDir
from clusterdp.submission.render.script_spec import lines_of, words_of
from clusterdp.wording import counted, some_of

STEPS_S = 15.0  # seconds from the first step after which the first run of a long job is cut short
LIMIT_S = 600.0  # maximum seconds of the first run, because its command may take long
TRIES = 3  # maximum number of tries of a drill whose fault did not happen
NOISE_RUNS = 5  # maximum number of undisturbed runs, if the program is not deterministic
UNDISTURBED, AGAIN = "undisturbed", "undisturbed-again"


class Screen(Protocol):
    """The display of a rehearsal. The methods are called from several threads."""

    def begins(self, name: str, about: str) -> None: ...
    def is_at(self, name: str, step: int | None, doing: str) -> None: ...
    def ended(self, name: str, verdict: str, said: str, took_s: float) -> None: ...


@dataclass(frozen=True)
class Undisturbed:
    """The outcome of an undisturbed run."""

    name: str
    said: str  # the result of the run, in words
    took_s: float
    folder: str
    attempts: tuple[AttemptRow, ...]


@dataclass
class Rehearsal:
    """A rehearsal of one job."""

    config: Config
    folder: Path  # the folder with all runs of the rehearsal
    submit_dir: Path
    drills: Sequence[Drill]
    screen: Screen
    grace_s: float  # the grace time of preemptions
    ranks: int  # the job's
    cluster: str = "local"
    seed: int = 0
    jobs: int = 1
    thorough: bool = False
    verdicts: list[Verdict] = field(default_factory=list)
    reference: Reference | None = None
    runs: list[Undisturbed] = field(default_factory=list)  # the two undisturbed runs
    compared: bool = False  # whether the end states of the two undisturbed runs were compared
    processes: RunProcesses = field(default_factory=RunProcesses)
    overrides: list[str] = field(default_factory=list)  # overrides of the config in all runs
    runs_s: list[float] = field(default_factory=list)  # seconds of each run, also if its fault did not happen
    _code_of: str = ""
    _noise: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> list[Verdict]:
        """Makes all runs. Raises RunError or ConfigError if the undisturbed job fails or leaves no end state."""
        try:
            reference = self.reference = self._undisturbed()
            if self._again(reference):
                self._under_each_drill(reference)
        finally:
            for copies in self.folder.glob(f"*{VERSIONS}"):
                shutil.rmtree(copies, ignore_errors=True)  # after Ctrl-C, a run may still write to this folder
        return self.verdicts

    def _under_each_drill(self, reference: Reference) -> None:
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                waiting: set[Future[Verdict]] = {pool.submit(self._drill, drill, reference) for drill in self.drills}
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    self.verdicts += [each.result() for each in done]
            except BaseException:
                self.processes.end()
                pool.shutdown(cancel_futures=True)
                raise
        order = {drill.name: i for i, drill in enumerate(DRILLS)}
        self.verdicts.sort(key=lambda verdict: order.get(verdict.drill, -1))

    def _add(self, verdict: Verdict) -> None:
        self.screen.begins(verdict.drill, verdict.about)
        self.screen.ended(verdict.drill, verdict.verdict, verdict.said, 0.0)
        self.verdicts.append(verdict)

    # -- undisturbed --

    def _undisturbed(self) -> Reference:
        self.overrides = shortening.for_all(self.config, self.cluster)
        first = [*self.overrides, *shortening.for_first(self.config)]
        began = time.time() - TICK_S
        self.screen.begins(UNDISTURBED, "nothing is done to it")
        limit = None if self.config.rehearse.steps is not None else STEPS_S
        check_patterns(self.config.rehearse.compare)
        look = _EarlyLook(lambda: self._must_not_be_ambiguous(RunDir(self.folder / UNDISTURBED), Facts(), began))
        result = self._run(UNDISTURBED, UNDISTURBED, first, look=look, steps_for_s=limit)
        self._code_of = str(self.folder / UNDISTURBED)
        self.overrides += shortening.for_steps(self.config, result.facts, result.state == CUT_SHORT)
        facts = result.facts
        if result.state == CUT_SHORT:
            self._must_not_be_ambiguous(RunDir(Path(result.folder)), facts, began)
            began = time.time() - TICK_S
            result = self._run(UNDISTURBED, f"{UNDISTURBED}-short", self.overrides)
            facts = replace(result.facts, start_s=min(result.facts.start_s, facts.start_s))
        run = self._must_be_done(result)
        facts = replace(facts, warm_up=steps_of_warm_up(read_history(run), self.config, facts.steps))
        self._undisturbed_ended(UNDISTURBED, _steps(facts), result)
        patterns = self._patterns(run, facts, began)
        state = end_state(run, patterns)
        if state is None:
            raise ConfigError(
                f"rehearse.compare: {some_of(list(patterns), 3)}: no such file in {shown_path(run.code)}."
            )
        return Reference(run.path, facts, state, patterns, began=began, text=self._text(run))

    def _again(self, reference: Reference) -> bool:
        """Compares a second undisturbed run with the first run, and notes the differences of their end states.

        Returns False if the second run resumed from the first run's files, because the run of every drill would resume
        from them, too, and would show nothing.
        """
        self.screen.begins(AGAIN, "is it deterministic at all?")
        result = self._run(AGAIN, AGAIN, self.overrides)
        run = RunDir(Path(result.folder))
        beside = beside_another(reference.facts, result.facts, self.folder, reference.text)
        reason = went_on(*(_printed(each, reference.facts) for each in (RunDir(reference.folder), run)))
        if beside and result.state != "done":
            reason = reason or f"the second undisturbed run ended as {result.state}"
        if reason:
            self._undisturbed_ended(AGAIN, reason, result)
            self._add(not_apart(reason, beside))
            return False
        saves = reference.facts.saves.in_both(result.facts.saves)
        reference.facts = replace(reference.facts, saves=saves)
        other = end_state(self._must_be_done(result), reference.patterns)
        if other is None:
            raise CheckpointError(f"{AGAIN}: left no end state, as the run before it did. Look at its logs.")
        reference.again = run.path
        differs = compare(reference.state, other)
        if differs:
            reference.add(other)
        self.compared = True
        said = differ(len(differs)) if differs else "the same state, bit for bit"
        self._undisturbed_ended(AGAIN, f"{said} ({reference.state.source})", result)
        shared = [shared_files(facts, reference.text) for facts in (reference.facts, result.facts)]
        for found in (beside, shared[0] or shared[1]):
            if found:
                self._add(found)
        return True

    def _text(self, run: RunDir) -> ProgramText | None:
        if lines := lines_of(self.config.script, "script"):
            return read_script(lines, run.code, run.script)
        words = words_of(self.config.command, "command")
        return read_program(words, run.code) if words else None

    def _undisturbed_ended(self, name: str, said: str, result: RunResult) -> None:
        self.screen.ended(name, "", said, result.took_s)
        rows = attempts_of(result, read_history(RunDir(Path(result.folder))), result.facts)
        self.runs.append(Undisturbed(name, said, result.took_s, result.folder, rows))

    def _must_be_done(self, result: RunResult) -> RunDir:
        run = RunDir(Path(result.folder))
        if result.state == "done":
            return run
        history = read_history(run)
        words = words_of_failure(history) or result.why or "no rank has begun"
        raise RunError(
            f"rehearse: undisturbed, the job ended as {result.state}: {words}. "
            f"`clusterdp why {shown_path(run.path)}` tells more."
        )

    def _patterns(self, run: RunDir, facts: Facts, began: float) -> tuple[str, ...]:
        """Returns patterns for the files of the end state, or no pattern if the end state is one of our checkpoints."""
        if self.config.rehearse.compare:
            return tuple(self.config.rehearse.compare)
        if facts.ours:
            return ()
        found = candidates(run.code, began)
        if not found and (outside := left_outside(facts, self.folder)):
            return tuple(outside)
        if len(found) == 1:
            paths = dict.fromkeys([*found, *best_models(run.code, began)])
            return tuple(str(path.relative_to(run.code)) for path in paths)
        raise _not_one(run, found)

    def _must_not_be_ambiguous(self, run: RunDir, facts: Facts, began: float) -> None:
        """Raises ConfigError if the first steps have left several files that may be the end state.

        No file is no error, because the program may save at its end.
        """
        is_ours = facts.ours or bool(list_checkpoints(run.checkpoints))
        found = [] if self.config.rehearse.compare or is_ours else candidates(run.code, began)
        # Only checkpoints count, because a program with other files may still write a checkpoint.
        if len(found) > 1 and all(is_checkpoint(path.name) for path in found):
            raise _not_one(run, found)

    @property
    def changes(self) -> list[shortening.Change]:
        """The config changes that all runs of the rehearsal have."""
        return shortening.changes(values_of(self.config), self.overrides)

    # -- drills --

    def _drill(self, drill: Drill, reference: Reference) -> Verdict:
        self.screen.begins(drill.name, drill.about)
        try:
            return self._judged(drill, reference)
        except Exception as why:  # the verdicts on the other drills must not be lost
            log = self.folder / f"{drill.name}.log"
            with log.open("a") as file:
                traceback.print_exc(file=file)
            said = f"the drill could not be made: {str(why) or type(why).__name__} ({log.name} tells more)"
            self.screen.ended(drill.name, NOT_LANDED, said, 0.0)
            return Verdict(drill.name, drill.about, NOT_LANDED, said)

    def _judged(self, drill: Drill, reference: Reference) -> Verdict:
        overrides = [*self.overrides, *drill.always, *(drill.config if reference.facts.ours else ())]
        if drill.other_size:
            overrides.append("resources.nodes={},{}".format(*self.config.resources.sizes))
        for turn in itertools.count(1):
            name = drill.name if turn == 1 else f"{drill.name}-{turn}"
            result = self._run(drill.name, name, overrides, drill=drill.name, facts=reference.facts, seed=turn)
            history = read_history(RunDir(Path(result.folder)))
            if result.inapplicable or turn == TRIES or not why_missed(result, history):
                break
            self.screen.is_at(drill.name, None, "its fault did not land: once more")
        judged = partial(judge, drill, result, Path(result.folder), reference, self.config)
        verdict = judged()
        if verdict.differing and reference.spread is not None:  # two undisturbed runs alone give no bound
            self._measure_noise(drill.name, reference)
            verdict = judged()
        verdict = replace(verdict, tries=turn)
        said = verdict.diagnosis or verdict.said if verdict.verdict in BAD else verdict.said
        self.screen.ended(drill.name, verdict.verdict, said, verdict.took_s)
        return verdict

    def _measure_noise(self, shown: str, reference: Reference) -> None:
        """Makes more undisturbed runs to measure their spread, once for all drills, while other drills go on."""
        with self._noise:
            for number in range(reference.runs + 1, NOISE_RUNS + 1):
                self.screen.is_at(shown, None, f"undisturbed run {number} of {NOISE_RUNS}, for the spread")
                result = self._run(shown, f"{UNDISTURBED}-{number}", self.overrides)
                other = end_state(self._must_be_done(result), reference.patterns)
                if other is not None:
                    reference.add(other)

    def _run(
        self, shown: str, name: str, overrides: list[str], *, drill: str = "", seed: int = 0, **more: Any
    ) -> RunResult:
        facts: Facts = more.pop("facts", Facts())
        look: Callable[[int | None], None] = more.pop("look", lambda step: None)
        limit_s = LIMIT_S if not drill and not self._code_of else 180 + 6 * max(facts.took_s, 20.0)
        if drill == "killed-while-saving":
            limit_s += len(facts.saves.strikes) * max(facts.took_s, 20.0)
        spec = RunSpec(
            name=name,
            values=values_of(self.config),
            overrides=overrides,
            folder=str(self.folder / name),
            submit_dir=str(self.submit_dir),
            cluster=self.cluster,
            drill=drill,
            code_of=self._code_of,
            seed=self.seed * 1000 + seed,
            grace_s=self.grace_s,
            limit_s=limit_s,
            facts=facts,
            thorough=self.thorough,
            **more,
        )

        def tell(step: int | None, doing: str) -> None:
            self.screen.is_at(shown, step, doing)
            look(step)

        result = self.processes.run(spec, tell)
        self.runs_s.append(result.took_s)
        return result


@dataclass
class _EarlyLook:
    """A check that is made once during the first run, STEPS_S seconds after its first step.

    An error that the check raises ends the run.
    """

    look: Callable[[], None]
    first_step: float | None = None
    is_over: bool = False

    def __call__(self, step: int | None) -> None:
        now = time.monotonic()
        if step and self.first_step is None:
            self.first_step = now
        if not self.is_over and self.first_step is not None and now - self.first_step > STEPS_S:
            self.is_over = True
            self.look()


def _not_one(run: RunDir, found: Sequence[Path]) -> ConfigError:
    names = [str(path.relative_to(run.code)) for path in found]
    which = f"there are {some_of(names, 4)}" if names else f"it has left no file that can be compared in {run.code}"
    return ConfigError(
        f"rehearse.compare: is not set, and {which}. Name the files of the end state, e.g. "
        f"rehearse.compare=[{names[0] if names else 'out/ckpt.pt'}]."
    )


def values_of(config: Config) -> dict[str, Any]:
    """Returns the config as the dict that config.from_resolved() reads."""
    values = dataclasses.asdict(config)
    del values["defaults"]
    return values


def _printed(run: RunDir, facts: Facts) -> list[int]:
    """Returns the steps that rank 0 printed in the first attempt.

    Returns [] for a program with our loop, whose runs cannot resume from each other's files.
    """
    attempts = [] if facts.ours else run.attempts()
    return read_steps(attempts[0], facts.counter) if attempts else []


def _steps(facts: Facts) -> str:
    if not facts.steps:
        return f"{facts.took_s:.0f} s; it does not tell its steps"
    return (
        f"{counted(facts.steps, 'step')} in {facts.took_s - facts.start_s:.0f} s, after {facts.start_s:.0f} s of start"
    )
