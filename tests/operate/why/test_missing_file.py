"""A job that misses a file which the user sees before them: they must hear that it is not in the snapshot."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from clusterdp.operate.output.formatting import Colour
from clusterdp.operate.queue.run_status import RunStatus
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.status.show_status import as_text
from clusterdp.operate.status.watch import summary
from clusterdp.operate.why.failure_words import left_out
from clusterdp.operate.why.first_failure import find_failure
from tests.operate.builder import RunBuilder

PYTHON = "Traceback (most recent call last):\nFileNotFoundError: [Errno 2] No such file or directory: '{}'\n"


@pytest.fixture
def submit_dir(elsewhere: Path) -> Path:
    for name in ("data/set/train.bin", "train.py"):
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).touch()
    return elsewhere


@pytest.fixture
def crashed(builder: RunBuilder, submit_dir: Path) -> RunBuilder:
    builder.run.code.mkdir()
    (builder.run.code / "train.py").touch()
    builder.submitted(dir=str(submit_dir))
    return builder


def remedy(builder: RunBuilder, log: str) -> str | None:
    builder.attempt().printed(log).failed()
    history = read_history(builder.run)
    return left_out(history, find_failure(history))


@pytest.mark.parametrize(
    "line",
    [
        PYTHON.format("data/set/train.bin"),
        PYTHON.format("./data/../data/set/train.bin"),
        "Traceback (most recent call last):\ncat: data/set/train.bin: No such file or directory\n",
    ],
)
def test_status_and_watch_suggest_a_snapshot_link_for_a_missing_file(crashed: RunBuilder, line: str) -> None:
    said = remedy(crashed, line)
    assert said
    assert said.startswith("data/set/train.bin is in ")
    assert said.endswith("Submit a new run with snapshot: {link: [data]}")
    history = read_history(crashed.run)
    status = RunStatus(history.state, history.why)
    assert [line for line in as_text(history, status, crashed.now, Colour(io.StringIO())) if said in line]
    assert said in summary(history, status, Colour(io.StringIO()), crashed.now)


def test_snapshot_remedy_links_only_the_missing_path(crashed: RunBuilder) -> None:
    (crashed.run.code / "data/set").mkdir(parents=True)
    said = remedy(crashed, PYTHON.format(crashed.run.code / "data/set/train.bin"))
    assert said
    assert said.endswith("{link: [data/set/train.bin]}")


@pytest.mark.parametrize("name", ["data/set/other.bin", "/etc/no-such-file", "../../here/train.py", "train.py", "\0"])
def test_missing_file_gets_no_remedy_if_a_snapshot_link_would_not_help(crashed: RunBuilder, name: str) -> None:
    assert remedy(crashed, PYTHON.format(name)) is None


def test_missing_file_of_a_run_without_a_snapshot_gets_no_remedy(builder: RunBuilder, submit_dir: Path) -> None:
    builder.submitted(dir=str(submit_dir))
    assert remedy(builder, PYTHON.format("data/set/train.bin")) is None
