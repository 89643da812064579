"""Dumps of torch's flight recorder: what is read from them, and what a hostile or damaged one can do."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest

from clusterdp.train.hang import flight_record
from clusterdp.train.hang.flight_record import FlightRecord

ENTRY = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 7, "p2p_seq_id": 0, "is_p2p": False}


def entry(**values: Any) -> dict[str, Any]:
    return {**ENTRY, "state": "completed", "retired": True, **values}


def dump(path: Path, *entries: Any) -> str:
    path.write_bytes(pickle.dumps({"version": "2.10", "entries": list(entries)}, protocol=2))
    return str(path)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Without variables of the recorder; folders are made below the test's own."""
    for name in [name for name in os.environ if name.startswith(("TORCH_NCCL", "TORCH_FR"))]:
        monkeypatch.delenv(name)
    for name in (*flight_record.SIZE, *flight_record.DUMP, flight_record.PIPE, "TORCH_NCCL_DUMP_ON_TIMEOUT"):
        monkeypatch.setenv(name, "")  # removed again after the test, whatever switch_on() sets
        monkeypatch.delenv(name)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(flight_record, "_folder", "")
    return tmp_path


@pytest.mark.parametrize(
    ("last", "record"),
    [
        (entry(), FlightRecord("all_reduce 7", pending=False)),
        (entry(state="started", retired=False), FlightRecord("all_reduce 7", pending=True)),
        (entry(state="scheduled", retired=True), FlightRecord("all_reduce 7", pending=False)),
        (entry(is_p2p=True, p2p_seq_id=3, profiling_name="nccl:send 0->1"), FlightRecord("send 0->1 3", pending=False)),
    ],
)
def test_flight_record_has_the_last_collective_and_its_state(tmp_path: Path, last: Any, record: FlightRecord) -> None:
    assert flight_record.read(dump(tmp_path / "rank_0", entry(collective_seq_id=6), last)) == record


def test_flight_record_is_pending_with_an_earlier_pending_collective(tmp_path: Path) -> None:
    first = entry(collective_seq_id=6, state="scheduled", retired=False)
    assert flight_record.read(dump(tmp_path / "rank_0", first, entry())) == FlightRecord("all_reduce 7", pending=True)


class Hostile:
    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)


def test_read_refuses_a_dump_with_a_function_and_does_not_call_it(tmp_path: Path) -> None:
    path = dump(tmp_path / "rank_0", entry(profiling_name=Hostile(tmp_path / "made")))
    assert flight_record.read(path) is None
    assert not (tmp_path / "made").exists()
    pickle.loads(Path(path).read_bytes())
    assert (tmp_path / "made").exists()  # the same dump is dangerous to other readers


def test_truncated_dump_has_no_flight_record(tmp_path: Path) -> None:
    path = dump(tmp_path / "rank_0", entry(), entry())
    whole = Path(path).read_bytes()
    for size in range(len(whole)):
        Path(path).write_bytes(whole[:size])
        assert flight_record.read(path) is None, size


def test_request_writes_to_a_pipe_but_not_to_a_file(tmp_path: Path) -> None:
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.write_text("mine")
    assert not flight_record.request(str(file))
    assert file.read_text() == "mine"
    os.mkfifo(pipe)
    assert not flight_record.request(str(pipe))  # nobody reads it
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert flight_record.request(str(pipe))
    assert os.read(reader, 8)
    os.close(reader)


@pytest.mark.parametrize(("old_names", "index"), [(False, 0), (True, 1)])
def test_switch_on_sets_the_names_of_each_version_of_torch(clean: Path, old_names: bool, index: int) -> None:
    dump_file, pipe, folder = flight_record.place(3)
    assert not Path(folder).exists()
    flight_record.switch_on(old_names=old_names)
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    assert os.environ[flight_record.DUMP[index]] + "3" == dump_file
    assert os.environ[flight_record.PIPE] + "3.pipe" == pipe
    assert int(os.environ[flight_record.SIZE[index]]) > 0
    assert not {flight_record.DUMP[1 - index], flight_record.SIZE[1 - index]} & {*os.environ}
    Path(dump_file).write_text("")
    flight_record.remove(folder)
    assert not Path(folder).exists()


def test_switch_on_keeps_the_variables_of_the_user(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flight_record.DUMP[1], "/mine/trace_")
    monkeypatch.setenv(flight_record.SIZE[1], "0")
    dump_file, _, _ = flight_record.place(3)
    flight_record.switch_on(old_names=False)
    assert dump_file == "/mine/trace_3"
    assert os.environ[flight_record.SIZE[1]] == "0"
    assert not {flight_record.DUMP[0], flight_record.SIZE[0]} & {*os.environ}


def test_rank_without_a_hang_watch_makes_no_folder_for_dumps(clean: Path) -> None:
    flight_record.switch_on(old_names=False)
    assert not list(clean.iterdir())


def test_keep_copies_the_first_dump_of_a_node(tmp_path: Path) -> None:
    for rank in (0, 1):
        flight_record.keep(dump(tmp_path / f"rank_{rank}", entry(collective_seq_id=rank)), tmp_path / "kept")
    assert flight_record.read(str(tmp_path / "kept")) == FlightRecord("all_reduce 0", pending=False)
