"""Witness: the account of the steps after a save, with which an attempt that resumes from this save compares its own.

    after a save     of each of the next STEPS steps the batch and the random streams; then the state
    at a stop        the state, and the next batch of the epoch: no step follows
    after a restore  the same again, compared with what rank 0 has written for this save: see verdict.py

Rank 0 writes a small file for each save, RUN/witness/<step>-<token>.json, with the numbers of all ranks.
"""

from __future__ import annotations

import json
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any
from zlib import crc32

from clusterdp.checkpoint import Restored
from clusterdp.checkpoint.state import machine, stateful
from clusterdp.errors import StateError
from clusterdp.plainfile import read_plain, write_durably
from clusterdp.train.data.batch_mark import mark_of
from clusterdp.train.data.loader_identity import facts, length_of
from clusterdp.train.data.resumable_loader import our_sampler
from clusterdp.train.output.attempt_record import AttemptRecord
from clusterdp.train.output.metric_log import plain, to_host
from clusterdp.train.output.say import say
from clusterdp.train.ranks.rank import Rank
from clusterdp.train.witness.marks import Mark, StateMarks, numbers_of, of, of_generators, of_streams
from clusterdp.train.witness.verdict import OTHER, SAME, Account, Verdict, compare

STEPS = 3  # steps after a save that are compared
KEPT = 32  # files of the newest saves, at least
MEMORY = ".memory"  # ends the token of a copy to the memory of the nodes
LONGEST_S = 0.5  # seconds for which a stop waits for the next batch, and for the disk


@dataclass
class _Window:
    """What is known of the steps after one save. then: the account to compare with, on rank 0."""

    token: str
    step: int
    before: StateMarks | None
    compares: bool = False
    then: Account | None = None
    steps: list[tuple[int, int]] = field(default_factory=list)  # of each step: batch, streams
    micro: dict[tuple[int, int], int] = field(default_factory=dict)  # (step, micro-batch of this rank) -> its mark
    values: list[dict[str, Any]] = field(default_factory=list)
    after: StateMarks | None = None
    generators: list[dict[str, int]] = field(default_factory=list)  # after the first batch, and after the last step
    numbers: dict[str, float] = field(default_factory=dict)  # after the last step


class Witness:
    """The accounts of one loop. All methods but batch() are collective. Without a run folder, and with
    checkpoint.witness: off, they do nothing; outside of the steps after a save, batch() and step() do nothing either.
    """

    def __init__(self, state: Mapping[str, Any], loader: Any, rank: Rank, record: AttemptRecord, mode: str):
        self._given, self._loader, self._rank, self._record, self._mode = state, loader, rank, record, mode
        self._drawing = loader if our_sampler(loader) is None else None  # job.loader()'s generators are seeded anew
        sampler = our_sampler(loader)
        self._global_batch = sampler.global_batch if sampler is not None else None
        self.by_tree = False  # whether a step has the same bits on any number of ranks
        self._state: dict[str, Any] | None = None
        self._windows: list[_Window] = []
        self._folder = record.run.witness if record.run is not None and mode != "off" else None

    @property
    def is_watching(self) -> bool:
        """Whether there are steps to note, which is the same on all ranks."""
        return bool(self._windows)

    def saved(self, token: str, step: int, *, waits: bool = False) -> None:
        """Begins the account of a save. waits: whether the training waits for the save, and may stop after it: then the
        account has the state at the save, too."""
        if self._folder is not None:
            self._windows.append(_Window(token, step, self._marks() if waits else None))

    def restored(self, token: str, restored: Restored) -> None:
        """Begins to compare with the account of the restored save, if there is one. With a global batch, another number
        of ranks may have saved."""
        same_ranks = restored.world_size == self._rank.world_size
        if self._folder is None or not (same_ranks or self._global_batch is not None):
            return
        then = _read(self._folder, restored.step, token, restored.world_size) if self._rank.is_first else None
        if self._rank.group.agree(int(then is not None))[0]:
            self._windows.append(_Window(token, restored.step, self._marks(), compares=True, then=then))

    def _marks(self) -> StateMarks:
        if self._state is None:
            self._state = stateful.check(self._given)
        return StateMarks(self._state)

    def batch(self, batch: Any, begins: bool = True, number: int | None = None) -> None:
        """Notes a batch before the program gets it. begins: whether a step begins with it. number: of a micro-batch."""
        if self._windows:
            self._note(of(mark_of, batch), of(of_streams) if begins else 0, begins, number)

    def _note(self, batch: int, streams: int, begins: bool, number: int | None) -> None:
        for window in self._windows:
            if window.after is None and number is not None:
                window.micro[len(window.steps) + begins, number] = batch
            if window.after is None and begins:
                window.steps.append((batch, streams))
                if len(window.steps) == 1:
                    # At an epoch's end, reading on has made samplers draw, which no resume repeats.
                    window.generators.append(of_generators(self._drawing) if streams else {})

    def stop(self, batches: Iterator[Any] | None, data_s: float, number: int | None = None) -> None:
        """Concludes what has begun, before a stop. No step follows, but the epoch's next batch is read, unless that
        takes long. Without a length, ranks agree on each batch, and a rank whose data set fails would leave the others
        waiting: then none is read, and none for a GPU, whose batches have no marks. batches: the rest of the epoch;
        None if it is at its end. data_s: mean seconds for a batch. number: of the next micro-batch."""
        if not self._windows:
            return
        agrees = self._rank.world_size > 1 and length_of(self._loader) is None
        is_left_out = agrees or batches is None or data_s > LONGEST_S or self._rank.device.type != "cpu"
        if not self._rank.group.agree(int(is_left_out))[0] and batches is not None:
            batch, streams = _next_of(batches)
            self._note(batch, streams if number is None else 0, True, number)  # of a micro-batch, seeded later
        self.end()

    def step(self, values: Mapping[str, Any]) -> None:
        """Notes a finished step. values: what rank 0 has logged in it."""
        if not self._windows:
            return
        over = [window for window in self._windows if window.after is not None]
        copies = {name: to_host(value) for name, value in values.items()}
        for window in self._windows:
            if window.after is None:
                window.values.append(copies)
                if len(window.steps) == STEPS:
                    window.after = self._marks()
                    window.generators.append(of_generators(self._drawing))
                    window.numbers = self._numbers()
                    over += [window] if self._rank.device.type == "cpu" else []  # a GPU's marks come a step later
        for window in over:
            self._conclude(window)

    def _numbers(self) -> dict[str, float]:
        with suppress(Exception):  # an object of the program
            return numbers_of(self._loader) if self._rank.is_first else {}
        return {}

    def end(self) -> None:
        """Concludes what has begun, at the end of the loop."""
        for window in [*self._windows]:
            self._conclude(window, at_end=True)

    def _conclude(self, window: _Window, *, at_end: bool = False) -> None:
        self._windows.remove(window)
        account = self._account(window)
        if window.compares:
            self._compare(window.then, account)
        elif account is not None and self._folder is not None:
            writing = Thread(target=_write, args=(self._folder, account, at_end), name="clusterdp-witness", daemon=True)
            writing.start()
            if at_end:
                writing.join(LONGEST_S)

    def _account(self, window: _Window) -> Account | None:
        """Returns the account of all ranks, on rank 0. Collective."""
        columns, details = {"machine 0": crc32(repr(machine.describe()).encode())}, dict[str, Mapping[str, Mark]]()
        if window.before is not None:
            columns |= {f"state 0 {part}": mark for part, mark in window.before.sums().items()}
            details["0"] = window.before.ready()
        generators = dict(zip(("1", str(STEPS)), window.generators, strict=False))
        for number, (batch, streams) in enumerate(window.steps, 1):
            columns |= {f"batch {number}": batch, f"streams {number}": streams}
            every = range(self._global_batch.count if self._global_batch is not None else 0)
            columns |= {f"micro-batch {number} {each}": window.micro.get((number, each), 0) for each in every}
            if (marks := generators.get(str(number))) is not None:
                columns[f"generators {number}"] = sum(marks.values()) & 0x7FFFFFFF
        if window.after is not None:
            columns |= {f"state {STEPS} {part}": mark for part, mark in window.after.sums().items()}
            details[str(STEPS)] = window.after.ready()
        rows = self._rank.group.gather_numbers([*columns.values()])
        if rows is None:
            return None
        return Account(
            window.token,
            window.step,
            self._record.attempt,
            [*columns],
            rows,
            values=[_numbers_of(values) for values in window.values],
            details=details,
            generators=generators,
            numbers=window.numbers,
            loader=facts(self._loader),
            by_tree=self.by_tree,
        )

    def _compare(self, then: Account | None, now: Account | None) -> None:
        verdict = None
        if now is not None and then is not None and _is_comparable(then, now):
            with suppress(LookupError, ValueError, TypeError):  # of a damaged file, or another version's
                verdict = compare(then, now)
                if verdict.kind == OTHER:
                    verdict = self._beside_another_resume(verdict, now)
        if then is not None and verdict is not None and verdict.compared:
            self._tell(then, verdict)
        if self._mode == "stop" and self._rank.group.agree(int(verdict is not None and verdict.kind == OTHER))[0]:
            raise StateError(
                "checkpoint.witness: stop: this attempt does not repeat what followed its save: see the line above. "
                "checkpoint.witness=warn trains on."
            )

    def _beside_another_resume(self, verdict: Verdict, now: Account) -> Verdict:
        """Returns the verdict, with what another resume of the same save shows. On rank 0."""
        assert self._folder is not None
        again = f"{now.token}.again"
        other = _read(self._folder, now.step, again, len(now.ranks))
        if other is None:
            _write(self._folder, replace(now, token=again), durably=False)
        elif compare(other, now).kind == OTHER:
            words = "the program is not deterministic, or has changed"
            third = f"attempt {other.attempt} resumed there in a third way"
            return replace(verdict, differs=f"{words}, for {third}: {verdict.differs}")
        return verdict

    def _tell(self, then: Account, verdict: Verdict) -> None:
        first, last = then.step + 1, verdict.last
        line = f"as in attempt {then.attempt}: {verdict.differs}"
        if verdict.kind == OTHER:
            line = f"NOT {line}"
        elif verdict.kind == SAME:
            span = f"steps {first} to {last} repeat those" if first < last else f"step {first} repeats that"
            line = f"{span} of attempt {then.attempt} ({', '.join(verdict.compared)})."
        if verdict.kind == OTHER or first <= last:  # else it is over, and has no step to compare
            say(f"clusterdp: resumed at step {then.step}: {line}", error=verdict.kind == OTHER)
            if verdict.numbers:
                say(f"clusterdp: resumed at step {then.step}: {verdict.numbers}.")
        told = {"restored_step": then.step, "first": first, "last": last, "verdict": verdict.kind}
        self._record.event("witness", **told, compared=verdict.compared, differs=verdict.differs)


def _is_comparable(then: Account, now: Account) -> bool:
    """Returns whether the loaders are the same. On another number of ranks, a rank has another number of samples."""
    apart = {name for name in {*then.loader, *now.loader} if then.loader.get(name) != now.loader.get(name)}
    return not apart or (len(then.ranks) != len(now.ranks) and apart == {"samples"})


def _next_of(batches: Iterator[Any]) -> tuple[int, int]:
    """Returns the marks of the next batch and of the streams; zeros if there is none, or none within LONGEST_S: a stop
    must not wait for a data set that hangs."""
    found = list[tuple[int, int]]()

    def read() -> None:
        with suppress(Exception):  # of the data set: the state is saved
            found.extend((of(mark_of, batch), of(of_streams)) for batch in islice(batches, 1))

    reading = Thread(target=read, name="clusterdp-next-batch", daemon=True)
    reading.start()
    reading.join(LONGEST_S)
    return found[0] if found else (0, 0)


def _numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    found = dict[str, float]()
    for name, value in values.items():
        with suppress(Exception):  # a text, several numbers, or a number without end
            found[name] = float(plain(value))
    return found


def _path(folder: Path, step: int, token: str) -> Path:
    return folder / f"{step:08d}-{token}.json"


def _write(folder: Path, account: Account, durably: bool) -> None:
    """Writes the file, and removes the oldest ones. In a thread: a witness that is lost is not compared."""
    details = {
        after: {name: (crc, head.hex(), dtype) for name, (crc, head, dtype) in marks.items()}
        for after, marks in account.details.items()
    }
    ranks = [b64encode(array("I", row).tobytes()).decode() for row in account.ranks]
    text = json.dumps({**vars(account), "details": details, "ranks": ranks})
    path = _path(folder, account.step, account.token)
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        if durably:
            write_durably(path, text)
        else:  # a rank that is killed leaves it on the node
            written = path.with_suffix(".new")
            written.write_text(text)
            written.replace(path)
        kind = path.name.partition(".")[2]  # copies to memory, which are frequent, do not displace those of saves
        files = [each for each in folder.glob("*.json") if each.name.partition(".")[2] == kind]
        if len(files) > KEPT + KEPT // 2:  # else a copy each second would ask for 32 times on a shared file system
            files.sort(key=lambda each: each.stat().st_mtime)
            for old in files[:-KEPT]:
                old.unlink(missing_ok=True)


def _read(folder: Path, step: int, token: str, ranks: int) -> Account | None:
    """Returns the account of a save; None if there is none that can be read."""
    try:
        told = json.loads(read_plain(_path(folder, step, token)))
        told["ranks"] = [array("I", b64decode(row)).tolist() for row in told["ranks"]]
        for marks in told["details"].values():
            marks |= {name: (crc, bytes.fromhex(head), dtype) for name, (crc, head, dtype) in marks.items()}
        account = Account(**told)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None
    fits = len(account.ranks) == ranks and all(len(row) == len(account.labels) for row in account.ranks)
    return account if fits else None
