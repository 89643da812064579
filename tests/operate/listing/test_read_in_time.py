"""One folder that never answers must not keep the others from being listed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from clusterdp.operate.listing import list_runs as module
from clusterdp.operate.listing.list_runs import read_in_time

PATHS = [f"/{disk}/runs/{i}" for i in range(100) for disk in ("good", "hung")]


@pytest.fixture
def never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_read_in_time_reads_all_paths() -> None:
    assert read_in_time(PATHS, len) == ({path: len(path) for path in PATHS}, [])
    assert read_in_time([], len) == ({}, [])


def test_read_in_time_returns_a_hung_path_and_reads_all_healthy_ones(never: threading.Event) -> None:
    def read(path: str) -> str:
        if path == "/hung/runs/7":
            never.wait()
        return path

    found, silent = read_in_time(PATHS, read, patience_s=0.3)
    assert silent == ["/hung/runs/7"]
    assert found == {path: path for path in PATHS if path != "/hung/runs/7"}


def test_read_in_time_reads_healthy_file_systems_while_one_hangs(
    never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: str) -> str:
        if path.startswith("/hung/"):
            never.wait()
        return path

    monkeypatch.setattr(module, "_mount_points", lambda: ["/", "/hung", "/hu"])
    before = threading.active_count()
    found, silent = read_in_time(PATHS, read, patience_s=0.3)
    assert list(found) == [path for path in PATHS if path.startswith("/good/")]
    assert silent == [path for path in PATHS if path.startswith("/hung/")]
    assert threading.active_count() - before <= 1 + module.MORE_THREADS


def test_read_in_time_starts_a_second_thread_while_the_first_waits() -> None:
    """As over a network: the second one comes in while the first one waits for its answer."""
    meet = threading.Barrier(2, timeout=20)
    assert len(read_in_time(PATHS[:2], lambda path: meet.wait(), patience_s=20)[0]) == 2


def test_read_in_time_raises_an_error_of_its_read_function() -> None:
    with pytest.raises(ZeroDivisionError):
        read_in_time(PATHS, lambda path: 1 // 0)


def test_mount_points_include_the_root_file_system() -> None:
    assert "/" in module._mount_points()
