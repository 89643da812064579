"""Place: where the program is in a loop, as one value, and the table of its moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import IntEnum, auto
from typing import Any

from clusterdp.checkpoint.state import rng
from clusterdp.errors import StateError
from clusterdp.train.loop.position import Position


class Where(IntEnum):  # a number, because Python hashes other enums slowly, and each step looks up two
    BETWEEN_EPOCHS = auto()
    BETWEEN_BATCHES = auto()  # also in the body of the `for`, if save() or watch() has counted its batch
    IN_BATCH = auto()
    LEFT_IN_BATCH = auto()  # out of the epoch, by a `break` in a batch that is not counted yet
    LEFT = auto()  # the same, after its last batch was counted
    EVALUATION = auto()  # between two batches, in code that a resume repeats
    OVER = auto()


BETWEEN_EPOCHS, BETWEEN_BATCHES, IN_BATCH, LEFT_IN_BATCH, LEFT, EVALUATION, OVER = Where
Move = dict[Where, Where]  # a move from any other place is refused: the place stays as it is

# An epoch that is read anew begins with the batch that was not counted.
ENTER: Move = dict.fromkeys((BETWEEN_EPOCHS, BETWEEN_BATCHES, IN_BATCH, LEFT_IN_BATCH, LEFT), IN_BATCH)
COUNT: Move = {IN_BATCH: BETWEEN_BATCHES, LEFT_IN_BATCH: LEFT}
LEAVE: Move = {IN_BATCH: LEFT_IN_BATCH, BETWEEN_BATCHES: LEFT}  # refused if it is an iterator of an earlier epoch
END: Move = {BETWEEN_BATCHES: BETWEEN_EPOCHS}
EVALUATE: Move = {BETWEEN_EPOCHS: EVALUATION, BETWEEN_BATCHES: EVALUATION}
RETURN: Move = {EVALUATION: BETWEEN_BATCHES}
QUIT: Move = {LEFT_IN_BATCH: IN_BATCH, LEFT: BETWEEN_BATCHES}  # the program may return to an epoch if it quits all
NEXT_EPOCH: Move = dict.fromkeys(set(Where) - {OVER}, BETWEEN_EPOCHS)
FINISH: Move = dict.fromkeys(Where, OVER)


class Place:
    """Where the program is. can_be_left: whether an epoch that the program leaves early counts as ended."""

    def __init__(self, position: Position, *, can_be_left: bool):
        self.where, self._position, self._can_be_left = BETWEEN_EPOCHS, position, can_be_left
        self.in_window = 0  # number of counted batches of the window
        self.before: dict[str, Any] = {}  # the random state before the code that a resume repeats

    def move(self, move: Move) -> bool:
        """Returns whether the move is possible from here."""
        to = move.get(self.where)
        if to is None:
            return False
        self.where = to
        return True

    @property
    def is_left(self) -> bool:
        """Whether the program has left the epoch early."""
        return self.where in (LEFT_IN_BATCH, LEFT)

    def count(self, window: int) -> bool:
        """Counts the batch in a window of so many. Returns False if no batch is to be counted."""
        counts = self.move(COUNT)
        if counts:
            self.in_window = (self.in_window + 1) % window
        if self.where is LEFT and self._can_be_left:
            self._position.ended = True  # a resumed attempt continues after this epoch
        return counts

    def check_window_ended(self, call: str, window: int) -> None:
        if self.in_window:
            raise StateError(
                f"loop.{call}(): {self.in_window} of {window} batches into a window, whose gradients are in no "
                "checkpoint. Call it where loop.window_ends."
            )

    def end_epoch(self, before: dict[str, Any], missing: int | None) -> None:
        """Notes that the epoch has no more batches. before: the random state. missing: batches up to the loader's
        length."""
        self.move(END)
        self.before = before
        if self.in_window:
            raise StateError(
                f"accumulate: the loader ended {missing} batches before its length, in the middle of a window. Make "
                "its len() right."
            )

    def next_epoch(self) -> None:
        self.move(NEXT_EPOCH)
        self._position.next_epoch()
        self.in_window = 0  # the program may have left the epoch before its end

    @contextmanager
    def as_repeated(self) -> Iterator[None]:
        """Makes saves in the block use the random state before the code that a resume repeats."""
        repeats = (self._position.ended or self.where is EVALUATION) and self.before
        with rng.kept(self.before) if repeats else nullcontext():
            yield

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Marks code between two steps that a resume from a save in the block repeats. Restores the random state."""
        with rng.kept() as self.before:
            self.move(EVALUATE)
            yield
            self.move(RETURN)
