"""Scene: a run that trains on a fake cluster, as a drill sees it and breaks it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.operate.run_history import read_history
from clusterdp.rehearse import processes
from clusterdp.rehearse.not_landed import Missed
from clusterdp.rehearse.printed_steps import last_step
from clusterdp.rehearse.run_spec import Facts, Hit
from clusterdp.rehearse.slurm_cluster import ON_RECORD, SlurmCluster
from clusterdp.rundir import Attempt, RunDir

LOOK_S = 0.01
ASK_S = 0.3  # between two looks at the run's records
RANKS_S = 0.5  # between two searches for the ranks' processes: each looks at all that run here


@dataclass
class Scene:
    """tell: shows where the run is. grace_s: of a preemption."""

    run: RunDir
    cluster: FakeCluster | SlurmCluster
    job: str
    facts: Facts
    grace_s: float
    dice: random.Random
    tell: Callable[[int | None, str], None]
    watches_silence: bool = False  # the batch script looks whether the program hangs
    small_disk: Path | None = None  # where the checkpoints are, if it may be filled
    hits: list[Hit] = field(default_factory=list)
    doing: str = ""
    _ranks: dict[int, list[int]] = field(default_factory=dict)
    _ranks_of: str = ""
    _ranks_at: float = 0.0
    _page_file: str = ""  # of rank 0
    _asked: float = 0.0

    @property
    def attempt(self) -> Attempt | None:
        """The newest."""
        found = self.run.attempts()
        return found[-1] if found else None

    @property
    def is_remote(self) -> bool:
        """The ranks run on other machines: their processes cannot be seen."""
        return not isinstance(self.cluster, FakeCluster)

    @property
    def is_ours(self) -> bool:
        """Its loop and its checkpoints are ours."""
        return self.facts.ours

    # -- where it is --

    def ranks(self, fresh: bool = False) -> dict[int, list[int]]:
        """By rank, the processes of the newest attempt."""
        attempt = self.attempt
        name = attempt.name if attempt else ""
        now = time.monotonic()
        if fresh or name != self._ranks_of or now - self._ranks_at > RANKS_S:
            self._ranks, self._ranks_of, self._ranks_at = processes.ranks_of(self.run.path), name, now
        return self._ranks

    def pids(self) -> list[int]:
        return [pid for pids in self.ranks(fresh=True).values() for pid in pids]

    def page(self) -> processes.Page | None:
        """Of rank 0. A drill that waits for a phase looks 2,000 times a second, so its file is looked for once."""
        page = processes.read_page(self._page_file) if self._page_file else None
        if page is None and (ranks := self.ranks()):
            self._page_file = processes.page_file(ranks[min(ranks)])
            page = processes.read_page(self._page_file)
        return page

    def step(self) -> int | None:
        """Of the run, as its newest attempt has it."""
        page = self.page()
        if page is not None:
            return page.step
        attempt = self.attempt
        if attempt is not None and self.is_ours and self.is_remote:
            history = read_history(self.run)
            return history.step if history.attempts and history.attempts[-1].name == attempt.name else None
        return last_step(attempt.rank_log(0), self.facts.counter) if attempt else None

    def trained_s(self) -> float:
        """For how long the ranks of the newest attempt have run."""
        attempt = self.attempt
        try:
            return time.time() - attempt.logs.stat().st_mtime if attempt else 0.0
        except OSError:
            return 0.0

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
                self._tell()
                if isinstance(self.cluster, SlurmCluster):
                    self.cluster.start_soon()
                if read_history(self.run).state.over:
                    raise Missed(f"the run was over before {what}")
            time.sleep(every_s)

    def wait_progress(self, part: float) -> None:
        """Until this part of the training is done, by its steps, or else by its time."""
        total = self.facts.steps
        if total:
            wanted = self._between_saves(max(1, round(part * total)))
            self.wait(f"step {wanted}", lambda: (self.step() or 0) >= wanted, self._patience())
        else:
            wanted_s = self.facts.start_s + part * (self.facts.took_s - self.facts.start_s)
            self.wait(f"{100 * part:.0f} % of its time", lambda: self.trained_s() >= wanted_s, self._patience())

    def _between_saves(self, step: int) -> int:
        """This step, or a later one in the middle between two saves: right after one there is nothing to lose."""
        before = max((saved for saved in self.facts.saved_at if saved <= step), default=0)
        after = min((saved for saved in self.facts.saved_at if saved > step), default=0)
        return max(step, (before + after) // 2)

    def wait_next_attempt(self, after: Attempt) -> None:
        """Until its ranks run."""
        self.wait(
            "the next attempt",
            lambda: self.attempt is not None and self.attempt.name != after.name and self._have_begun(),
            600 if self.is_remote else 120,
        )

    def _have_begun(self) -> bool:
        """The ranks of the newest attempt."""
        return bool(self.ranks()) or (self.is_remote and self.step() is not None)

    def _patience(self) -> float:
        return 60 + 4 * self.facts.took_s

    def _tell(self) -> None:
        self.tell(self.step(), self.doing)

    # -- what is done to it --

    def newest(self) -> Attempt:
        attempt = self.attempt
        if attempt is None:
            raise Missed("no attempt has begun")
        return attempt

    def hit(
        self, evidence: str, *causes: str, attempt: Attempt | None = None, at: float | None = None, **more: object
    ) -> None:
        """Notes what has been done. The cause that is on record in the end is the other half of the proof. at: when
        that began, in seconds since 1970; default: now."""
        name = (attempt or self.newest()).name
        if isinstance(self.cluster, SlurmCluster):
            causes = (*causes, *(word for cause in causes for word in ON_RECORD.get(cause, ())))
        self.hits.append(Hit(name, evidence, self.step(), at or time.time(), causes, **more))  # type: ignore[arg-type]

    def handlers(self, number: signal.Signals = signal.SIGTERM) -> dict[str, str]:
        """By rank, what this signal does to it."""
        told = {str(rank): processes.on_signal(pids, number) for rank, pids in self.ranks(fresh=True).items()}
        return {rank: word for rank, word in told.items() if word}

    def shells(self, number: signal.Signals = signal.SIGTERM) -> dict[str, str]:
        """By rank, what this signal kills above a program that handles it."""
        told = {str(rank): processes.dies_above(pids, number) for rank, pids in self.ranks().items()}
        return {rank: word for rank, word in told.items() if word}

    def freeze(self) -> list[int]:
        """Stops all ranks where they are, and returns their processes."""
        processes.send([pid for pids in self.ranks().values() for pid in pids], signal.SIGSTOP)
        pids = self.pids()  # those that have begun since the ranks were looked for
        processes.send(pids, signal.SIGSTOP)
        return pids

    def thaw(self, pids: list[int]) -> None:
        processes.send(pids, signal.SIGCONT)

    def kill(self, pids: list[int]) -> None:
        processes.send(pids, signal.SIGKILL)

    def in_history(self, event: str) -> int:
        """How many such events the fake cluster has on record."""
        return sum(each["event"] == event for each in self.cluster.history())
