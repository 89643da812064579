"""Scene: a run on a cluster, with the waits and the faults of drills."""

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
ASK_S = 0.3  # seconds between two reads of the run's records


@dataclass(frozen=True)
class Moment:
    """A moment of a training at which a fault may come."""

    words: str
    part: float  # part of the training that is done at this moment
    near_save: bool = False  # whether the moment is just before a save is due, not in the middle between two saves


MOMENTS = (
    Moment("a third of the way", 1 / 3),
    Moment("half-way", 1 / 2),
    Moment("two thirds of the way", 2 / 3),
    Moment("near a save", 1 / 2, near_save=True),
)


@dataclass
class Scene:
    """The run to which a drill does its faults."""

    live: LiveRun
    files: FileWatch | None  # watches the use of the run's checkpoints
    cluster: DrillCluster
    job: str
    facts: Facts  # facts of the undisturbed run
    grace_s: float  # seconds between the notice of a preemption and the kill
    dice: random.Random
    tell: Callable[[int | None, str], None]  # reports the run's step and its activity
    watches_silence: bool = False  # whether the batch program ends a silent step
    thorough: bool = False  # whether ranks are killed at every event of a save, not only at a few
    hits: list[Hit] = field(default_factory=list)
    unmade: str = ""  # the part of the drill that was not made, and why
    doing: str = ""
    _moment: str = ""
    _began: tuple[float, int | None] | None = None  # time and step of the last mark()
    _asked: float = 0.0

    @property
    def run(self) -> RunDir:
        return self.live.run

    @property
    def is_ours(self) -> bool:
        """Whether the run uses our loop and our checkpoints."""
        return self.facts.ours

    def newest(self) -> Attempt:
        """Returns the newest attempt. Raises Missed if no attempt has begun."""
        attempt = self.live.attempt
        if attempt is None:
            raise Missed("no attempt has begun")
        return attempt

    # -- waiting --

    def wait(self, what: str, look: Callable[[], bool], timeout_s: float = 60.0, every_s: float = LOOK_S) -> None:
        """Waits until `look` returns True. Raises Missed if the run ends first, or after timeout_s."""
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
        """Waits for a moment of the training that the dice choose, and adds it to the evidence of the next hit."""
        moment = self.dice.choice(MOMENTS)
        self.wait_progress(moment.part, moment.near_save)
        self._moment = moment.words

    def wait_progress(self, part: float, near_save: bool = False) -> None:
        """Waits until this part of the training is done, measured in steps, or in time if the steps are not known."""
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
        """Whether now is between two saves, or with `near_save` just before a save, by the usual time between saves.

        False before the first save, because a program that still loads its libraries has no handler yet.
        """
        every_s = self.facts.save_every_s
        if not every_s or self.files is None:
            return True
        since = (time.time() - self.files.last_saved) / every_s
        return 0.8 < since < 1 if near_save else 0.3 < since < 0.7

    def _between_saves(self, step: int) -> int:
        """Returns this step, or a later step in the middle between two saves, because just after a save nothing can be
        lost."""
        before = max((saved for saved in self.facts.saved_at if saved <= step), default=0)
        after = min((saved for saved in self.facts.saved_at if saved > step), default=0)
        return max(step, (before + after) // 2)

    def _before_a_save(self, step: int) -> int:
        """Returns the step before the next save after this step. If no such save is known, returns this step."""
        return min((saved - 1 for saved in self.facts.saved_at if saved > step), default=step)

    def wait_next_attempt(self, after: Attempt) -> None:
        """Waits until the ranks of the next attempt run."""

        def has_begun() -> bool:
            attempt = self.live.attempt
            if attempt is None or attempt.name == after.name:
                return False
            return bool(self.live.ranks()) or (not self.cluster.ranks_are_here and self.live.step() is not None)

        self.wait("the next attempt", has_begun, self.cluster.restart_s)

    @property
    def patience_s(self) -> float:
        """The longest wait for any moment of the training."""
        return 60 + 4 * self.facts.took_s

    # -- faults --

    def hit(
        self, evidence: str, *causes: str, attempt: Attempt | None = None, at: float | None = None, **more: object
    ) -> None:
        """Notes a fault with its evidence.

        `causes`: the cause of the attempt's end must be recorded as one of these, as a second proof. `at`: when the
        fault began, in seconds since 1970; by default, the last mark(), or now.
        """
        name = (attempt or self.newest()).name
        began, step = self._began or (time.time(), self.live.step())
        total = self.facts.steps
        if self._moment:
            where = f"at step {step} of {total}, " if step and total else ""
            evidence = f"{evidence}, {where}{self._moment}"
        self._moment, self._began = "", None
        recorded = self.cluster.causes_of(causes)
        self.hits.append(Hit(name, evidence, step, at or began, recorded, **more))  # type: ignore[arg-type]

    def freeze(self) -> list[int]:
        """Stops all ranks by SIGSTOP, and returns their pids."""
        processes.send([pid for pids in self.live.ranks().values() for pid in pids], signal.SIGSTOP)
        pids = self.live.pids()  # also has processes that began after the last search for ranks
        processes.send(pids, signal.SIGSTOP)
        return pids

    def thaw(self, pids: list[int]) -> None:
        processes.send(pids, signal.SIGCONT)

    def mark(self) -> float:
        """Returns the present time as the begin of the next fault, before which a file was written or not."""
        self._began = self.files.mark() if self.files else time.time(), self.live.step()
        return self._began[0]

    def kill(self, pids: list[int]) -> None:
        self.mark()
        processes.send(pids, signal.SIGKILL)

    def in_history(self, event: str) -> int:
        """Returns how many events of this kind the cluster has on record."""
        return sum(each["event"] == event for each in self.cluster.history())
