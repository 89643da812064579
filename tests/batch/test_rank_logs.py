"""Logs of ranks: of a rank alone, and of the ranks of a node, with a label before each line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterdp.batch.act.failure import has_taken_port, last_words
from clusterdp.batch.files.rank_logs import (
    LONGEST,
    LOOK,
    PIECE,
    LogFile,
    RankLines,
    ends_in,
    log_files,
    log_of,
    ranks_in,
    text_of,
    whole,
)


def node_log(folder: Path, data: bytes, node: int = 0) -> LogFile:
    path = folder / f"node-{node:05d}.log"
    path.write_bytes(data)
    return LogFile(node, str(path), True)


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"0: a\n1: b\n0: c\n", {0: b"a\nc\n", 1: b"b\n"}),
        (b"0: \n0: 7: x\n10: : \n", {0: b"\n7: x\n", 10: b": \n"}),
        (b"0: \r 1 %\r 2 %\n1: b\n", {0: b"\r 1 %\r 2 %\n", 1: b"b\n"}),
        (b"3: a\nno label\n\n4: \xff\0\n", {3: b"a\nno label\n\n", 4: b"\xff\0\n"}),
        (b"3: half", {3: b"half\n"}),
        (b"", {}),
    ],
)
def test_lines_of_a_shared_log_go_to_their_ranks(data: bytes, texts: dict[int, bytes]) -> None:
    assert whole(data) == texts


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 5000])
def test_pieces_of_a_long_line_are_joined_between_lines_of_another_rank(size: int) -> None:
    line = (bytes(range(11, 256)) * 21)[:size]
    pieces = [line[at : at + PIECE] for at in range(0, size, PIECE)] + [b""] * (size % PIECE == 0)
    data = b"1: b\n".join(b"0: " + piece + b"\n" for piece in pieces)
    assert whole(data + b"0: next\n")[0] == line + b"\nnext\n"
    growing, taken = RankLines(), b""
    for each in data.split(b"\n")[:-1]:
        taken += growing.take(each + b"\n").get(0, b"")
    assert (taken, growing.rest()) == (line + b"\n", {})


def test_line_without_an_end_is_held_back_up_to_a_limit() -> None:
    growing = RankLines()
    piece = b"0: " + b"x" * PIECE + b"\n"
    assert growing.take(piece) == {0: b""}
    assert growing.take(piece * (LONGEST // PIECE)) == {0: b"x" * (LONGEST + PIECE)}
    assert growing.take(piece) == {0: b""} and growing.rest() == {0: b"x" * PIECE}


def test_ends_of_a_shared_log_reach_back_to_a_rank_silent_since(tmp_path: Path) -> None:
    flood = b"".join(b"1: line %d\n" % number for number in range(100_000))
    file = node_log(tmp_path, b"0: ValueError: early\n" + flood + b"2: last\n1: end\n")
    ends = ends_in(file, 100)
    assert [*ends] == [0, 2, 1]
    assert (ends[0], ends[2]) == (b"ValueError: early\n", b"last\n")
    assert ends[1].endswith(b"line 99999\nend\n") and 80 < len(ends[1]) <= 100


def test_ranks_are_found_at_both_ends_of_a_log(tmp_path: Path) -> None:
    file = node_log(tmp_path, b"8: a\n" + b"9: b\n" * LOOK + b"15: c\n")
    assert ranks_in(file) == [8, 9, 15]


def test_text_of_a_rank_comes_from_either_form(tmp_path: Path) -> None:
    node_log(tmp_path, b"2: a\n3: b\n2: c\n", node=1)
    node_log(tmp_path, b"0: first\n1: d\n")
    (tmp_path / "rank-00007.out").write_bytes(b"alone \xff")
    (tmp_path / "node-00000.out").write_text("0: torchrun's agent\n")
    assert [text_of(str(tmp_path), rank) for rank in (0, 2, 3, 7)] == ["first\n", "a\nc\n", "b\n", "alone \ufffd"]
    assert [(file.number, file.is_shared) for file in log_files(str(tmp_path))] == [(0, True), (1, True), (7, False)]
    assert log_of(log_files(str(tmp_path)), 9) is None
    assert text_of(str(tmp_path), 9) == ""


def test_pipe_named_like_a_log_does_not_block_its_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "node-00000.log")
    assert ranks_in(log_files(str(tmp_path))[0]) == []


def test_last_words_of_a_shared_log_are_kept_by_rank(tmp_path: Path) -> None:
    node_log(tmp_path, b"2: fine\n3: RuntimeError: EADDRINUSE\n", node=1)
    os.utime(tmp_path / "node-00001.log", (1, 1))
    node_log(tmp_path, b"1: b\n0: a\n")
    ends = last_words(str(tmp_path))
    assert [*ends] == [f"rank-0000{rank}.out" for rank in (2, 3, 1, 0)]
    assert ends["rank-00003.out"] == "RuntimeError: EADDRINUSE\n"
    assert not has_taken_port(str(tmp_path)), "rank 0 has its port"
    node_log(tmp_path, b"1: b\n0: EADDRINUSE\n")
    assert has_taken_port(str(tmp_path))
