"""Place: each move from each place, and where a program really is in its loop."""

from __future__ import annotations

import random

import pytest

from clusterdp.errors import StateError
from clusterdp.train import JobHandle
from clusterdp.train.loop import place as module
from clusterdp.train.loop.place import COUNT, ENTER, EVALUATE, LEAVE, QUIT, RETURN, Place, Where
from clusterdp.train.loop.position import Position
from tests.train.test_loop import DATA

# Where each move leads from each place; a dot: the move is refused.
TABLE = """
from             ENTER     COUNT            LEAVE          END             EVALUATE    RETURN           QUIT             NEXT_EPOCH      FINISH
BETWEEN_EPOCHS   IN_BATCH  .                .              .               EVALUATION  .                .                BETWEEN_EPOCHS  OVER
BETWEEN_BATCHES  IN_BATCH  .                LEFT           BETWEEN_EPOCHS  EVALUATION  .                .                BETWEEN_EPOCHS  OVER
IN_BATCH         IN_BATCH  BETWEEN_BATCHES  LEFT_IN_BATCH  .               .           .                .                BETWEEN_EPOCHS  OVER
LEFT_IN_BATCH    IN_BATCH  LEFT             .              .               .           .                IN_BATCH         BETWEEN_EPOCHS  OVER
LEFT             IN_BATCH  .                .              .               .           .                BETWEEN_BATCHES  BETWEEN_EPOCHS  OVER
EVALUATION       .         .                .              .               .           BETWEEN_BATCHES  .                BETWEEN_EPOCHS  OVER
OVER             .         .                .              .               .           .                .                .               OVER
"""  # noqa: E501
(_, *MOVES), *ROWS = [line.split() for line in TABLE.split("\n") if line]
LEADS = {(start, move): to for start, *targets in ROWS for move, to in zip(MOVES, targets, strict=True)}


def place(where: Where = Where.BETWEEN_EPOCHS, can_be_left: bool = True) -> Place:
    made = Place(Position(), can_be_left=can_be_left)
    made.where = where
    return made


@pytest.mark.parametrize(("start", "move"), LEADS)
def test_move_follows_the_table_from_each_place(start: str, move: str) -> None:
    here = place(Where[start])
    to = LEADS[start, move]
    assert here.move(getattr(module, move)) == (to != ".")
    assert here.where.name == (start if to == "." else to)


def test_table_has_every_move_of_the_module() -> None:
    moves = {name for name, value in vars(module).items() if type(value) is dict and name.isupper()}
    assert moves == {*MOVES}
    assert len(LEADS) == len(Where) * len(MOVES)


@pytest.mark.parametrize("can_be_left", [True, False])
def test_epoch_left_early_counts_as_ended_once_its_batch_is_counted(can_be_left: bool) -> None:
    here = place(Where.IN_BATCH, can_be_left)
    position = here._position
    assert here.move(LEAVE)
    assert (here.is_left, position.ended) == (True, False)
    assert here.count(1)
    assert (here.is_left, position.ended) == (True, can_be_left)
    assert not here.count(1)
    here.next_epoch()
    assert (here.is_left, position.ended, position.epoch) == (False, False, 1)


@pytest.mark.parametrize("counted", [True, False])
def test_quit_of_all_epochs_undoes_an_epoch_left_early(counted: bool) -> None:
    here = place(Where.IN_BATCH)
    if counted:
        here.count(1)
    assert here.move(LEAVE)
    assert here.move(QUIT)
    assert here.count(1) == (not counted)
    assert not here._position.ended


def test_window_begins_anew_after_its_last_batch_and_with_an_epoch() -> None:
    here = place()
    seen = []
    for _ in range(5):
        here.move(ENTER)
        here.count(3)
        seen.append(here.in_window)
    assert seen == [1, 2, 0, 1, 2]
    with pytest.raises(StateError, match=r"loop\.save\(\): 2 of 3 batches into a window"):
        here.check_window_ended("save", 3)
    with pytest.raises(StateError, match="ended 4 batches before its length"):
        here.end_epoch({}, 4)
    here.next_epoch()
    here.check_window_ended("save", 3)


@pytest.mark.parametrize("where", Where)
@pytest.mark.parametrize("ended", [True, False])
def test_random_state_before_repeated_code_is_saved_only_in_it(where: Where, ended: bool) -> None:
    here = place(where)
    here._position.ended = ended
    random.seed(1)
    with module.rng.kept() as here.before:
        then = random.random()
        with here.as_repeated():
            drawn = random.random()
    assert (drawn == then) == (ended or where is Where.EVALUATION)


def test_random_state_of_the_moment_is_saved_before_any_epoch() -> None:
    here = place()
    here._position.ended = True  # as restored: no code of this attempt is to be repeated
    random.seed(1)
    then = random.random()
    with here.as_repeated():
        assert random.random() != then


def test_evaluation_between_two_batches_returns_to_them() -> None:
    here = place(Where.IN_BATCH)
    assert here.count(1)
    assert here.move(EVALUATE)
    assert not here.move(COUNT)
    assert here.move(RETURN)
    assert here.move(ENTER)


def test_place_follows_a_program_through_its_epochs(job: JobHandle) -> None:
    loop = job.loop(job.loader(DATA, 2), {}, epochs=3)
    seen: list[str] = []

    def note() -> None:
        seen.append(loop.place.where.name)

    def between() -> bool:
        note()
        with loop.place.repeated():
            note()
        return True

    loop.between = between
    note()
    for epoch in loop.epochs():
        note()
        for i, _ in enumerate(epoch):
            if i in (0, 3):
                note()
            if i == 3 and epoch.index:
                assert list(loop.watch([0])) == [0]
                note()
                break
            if i == 2 and epoch.index == 2:
                break
        note()
        list(loop.watch([0]))
        note()
    note()
    step = ["BETWEEN_BATCHES", "EVALUATION"]
    first = ["BETWEEN_EPOCHS", "IN_BATCH", *3 * step, "IN_BATCH", *2 * step, *2 * ["BETWEEN_EPOCHS"]]
    second = ["BETWEEN_EPOCHS", "IN_BATCH", *3 * step, "IN_BATCH", "BETWEEN_BATCHES", "LEFT", "LEFT"]
    third = ["BETWEEN_EPOCHS", "IN_BATCH", *2 * step, "LEFT_IN_BATCH", "LEFT"]
    assert seen == ["BETWEEN_EPOCHS", *first, *second, *third, "OVER"]
