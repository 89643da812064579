"""Scene: a run on a cluster, as a drill waits for a moment in it and breaks it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from clusterdp.operate.record.run_history import read_history
from clusterdp.rehearse.clusters.drill_cluster import DrillCluster
from clusterdp.rehearse.observe import processes
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_watch import FileWatch
from clusterdp.rehearse.observe.live_run import LiveRun
from clusterdp.rehearse.run_spec import Hit, Missed
from clusterdp.rundir import Attempt, RunDir

LOOK_S = 0.01
ASK_S = 0.3  # between two looks at the run's records


@dataclass(frozen=True)
class Moment:
    """A moment of a training, at which a fault strikes. part: of the training. near_save: at the save that is next to
    it, just before that is due; else in the middle between two saves."""

    words: str
    part: float
    near_save: bool = False


MOMENTS = (
    Moment("a third of the way", 1 / 3),
    Moment("half-way", 1 / 2),
    Moment("two thirds of the way", 2 / 3),
    Moment("near a save", 1 / 2, near_save=True),
)


@dataclass
class Scene:
    """The run that a drill strikes."""

    live: LiveRun
    files: FileWatch | None  # watches what the run does with its checkpoints
    cluster: DrillCluster
    job: str
    facts: Facts  # of the undisturbed run
    grace_s: float  # between the notice of a preemption and its kill
    dice: random.Random
    tell: Callable[[int | None, str], None]  # reports the run's step and what it does
    watches_silence: bool = False  # whether the batch program ends a silent step
    thorough: bool = False  # strike at every event of a save
    hits: list[Hit] = field(default_factory=list)
    unmade: str = ""  # the part of the drill that was not made, and why
    doing: str = ""
    _moment: str = ""
    _asked: float = 0.0

    @property
    def run(self) -> RunDir:
        return self.live.run

    @property
    def is_ours(self) -> bool:
        """Its loop and its checkpoints are ours."""
        return self.facts.ours

    def newest(self) -> Attempt:
        """The newest attempt; Missed if there is none."""
        attempt = self.live.attempt
        if attempt is None:
            raise Missed("no attempt has begun")
        return attempt

    # -- waiting --

    def wait(self, what: str, look: Callable[[], bool], timeout_s: float = 60.0, every_s: float = LOOK_S) -> None:
        """Missed if the run is over first, or if it takes too long."""
        self.doing = f"waits for {what}"
        deadline = time.monotonic() + timeout_s
        while not look():
            now = time.monotonic()
            if now > deadline:
                raise Missed(f"{what} did not come within {timeout_s:.0f} s")
            if now - self._asked > ASK_S:
                self._asked = now
                self.tell(self.live.step(), self.doing)
                self.cluster.start_soon()
                if read_history(self.run).state.over:
                    raise Missed(f"the run was over before {what}")
            time.sleep(every_s)

    def wait_moment(self) -> None:
        """Until a moment of the training that the dice choose; the next hit's evidence names it."""
        moment = self.dice.choice(MOMENTS)
        self.wait_progress(moment.part, moment.near_save)
        step, total = self.live.step(), self.facts.steps
        at = f"at step {step} of {total}, " if step and total else ""
        self._moment = f"{at}{moment.words}"

    def wait_progress(self, part: float, near_save: bool = False) -> None:
        """Until this part of the training is done, by its steps, or else by its time."""
        total = self.facts.steps
        if total:
            step = max(1, round(part * total))
            wanted = self._before_a_save(step) if near_save else self._between_saves(step)
            self.wait(f"step {wanted}", lambda: (self.live.step() or 0) >= wanted, self.patience_s)
        else:
            wanted_s = self.facts.start_s + part * (self.facts.took_s - self.facts.start_s)
            self.wait(
                f"{100 * part:.0f} % of its time",
                lambda: self.live.trained_s() >= wanted_s and self._is_at_save_time(near_save),
                self.patience_s,
            )

    def _is_at_save_time(self, near_save: bool) -> bool:
        """By the usual interval of saves: between two, or just before one. Before the first one, a program may still
        load its libraries, and has no handler yet."""
        every_s = self.facts.save_every_s
        if not every_s or self.files is None:
            return True
        since = (time.time() - self.files.last_saved) / every_s
        return 0.8 < since < 1 if near_save else 0.3 < since < 0.7

    def _between_saves(self, step: int) -> int:
        """This step, or a later one in the middle between two saves: right after one there is nothing to lose."""
        before = max((saved for saved in self.facts.saved_at if saved <= step), default=0)
        after = min((saved for saved in self.facts.saved_at if saved > step), default=0)
        return max(step, (before + after) // 2)

    def _before_a_save(self, step: int) -> int:
        """The step before the next save after this one, and this step where none is known."""
        return min((saved - 1 for saved in self.facts.saved_at if saved > step), default=step)

    def wait_next_attempt(self, after: Attempt) -> None:
        """Until its ranks run."""

        def has_begun() -> bool:
            attempt = self.live.attempt
            if attempt is None or attempt.name == after.name:
                return False
            return bool(self.live.ranks()) or (not self.cluster.ranks_are_here and self.live.step() is not None)

        self.wait("the next attempt", has_begun, self.cluster.restart_s)

    @property
    def patience_s(self) -> float:
        """Within which each moment of the training comes."""
        return 60 + 4 * self.facts.took_s

    # -- what is done to it --

    def hit(
        self, evidence: str, *causes: str, attempt: Attempt | None = None, at: float | None = None, **more: object
    ) -> None:
        """Notes what has been done. The cause that is on record in the end is the other half of the proof. at: when
        that began, in seconds since 1970; default: now."""
        name = (attempt or self.newest()).name
        if self._moment:
            evidence, self._moment = f"{evidence}, {self._moment}", ""
        recorded = self.cluster.causes_of(causes)
        self.hits.append(Hit(name, evidence, self.live.step(), at or time.time(), recorded, **more))  # type: ignore[arg-type]

    def freeze(self) -> list[int]:
        """Stops all ranks where they are, and returns their processes."""
        processes.send([pid for pids in self.live.ranks().values() for pid in pids], signal.SIGSTOP)
        pids = self.live.pids()  # those that have begun since the ranks were looked for
        processes.send(pids, signal.SIGSTOP)
        return pids

    def thaw(self, pids: list[int]) -> None:
        processes.send(pids, signal.SIGCONT)

    def kill(self, pids: list[int]) -> None:
        processes.send(pids, signal.SIGKILL)

    def in_history(self, event: str) -> int:
        """How many such events the cluster has on record."""
        return sum(each["event"] == event for each in self.cluster.history())
