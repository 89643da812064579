"""Each check of the preflight, with its fault and without."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from clusterdp.train.preflight import meeting, own_checks
from clusterdp.train.preflight.meeting import MeetingPlace
from clusterdp.train.preflight.own_checks import NodeFinding
from tests.ports import free_port
from tests.train.preflights import preflight
from tests.train.ranks import running, wait_until


def test_healthy_node_has_no_fatal_preflight_findings(tmp_path: Path) -> None:
    assert list(own_checks.free_host_memory()) == []
    assert [f for f in own_checks.run_folder(tmp_path, "n1") if f.fatal] == []
    assert [*own_checks.devices()] == []
    assert list(tmp_path.iterdir()) == [], "no probe is left behind"


def test_preflight_finds_a_node_short_of_memory(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable:   102400 kB\n")
    assert texts(own_checks.free_host_memory(tmp_path / "meminfo")) == ["100 MB of memory are free, fewer than 256"]


def test_preflight_finds_a_full_run_folder_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = list(os.statvfs(tmp_path))
    room[4] = 0  # f_bavail
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(room))
    assert texts(own_checks.run_folder(tmp_path, "n1")) == ["the run folder has 0 MB of free space, fewer than 64"]


def test_preflight_reports_a_missing_run_folder_as_unwritable(tmp_path: Path) -> None:
    found = texts(own_checks.run_folder(tmp_path / "none", "n1"))
    assert found == ["cannot write to the run folder: No such file or directory"]


@pytest.mark.parametrize(("took", "fatal"), [(2.0, False), (40.0, True)])
def test_preflight_warns_of_a_slow_disk_and_fails_an_extremely_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: float, fatal: bool
) -> None:
    times = iter([0.0, took])
    monkeypatch.setattr(own_checks.time, "monotonic", lambda: next(times))
    [found] = own_checks.run_folder(tmp_path, "n1")
    assert found == NodeFinding(f"4 KiB took {took} s to reach the run folder", fatal)


def test_preflight_finds_a_device_with_wrong_matrix_products(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.Tensor.__matmul__

    def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = right(a, b)
        if a.dtype == torch.float32:
            product[17, 4] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    assert texts(own_checks.devices()) == ["the CPU gives a wrong product"]


@pytest.mark.parametrize(
    ("off", "found"),
    [
        (0.1, None),
        (-5.0, NodeFinding("its clock is 5 s behind the first node's", fatal=False)),
        (90.0, NodeFinding("its clock is 90 s ahead of the first node's")),
    ],
)
def test_preflight_warns_of_5_seconds_of_clock_skew_and_fails_at_90(off: float, found: NodeFinding | None) -> None:
    assert list(meeting.clock(1e9, 1e9 + off)) == ([found] if found else [])


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (TimeoutError("timed out"), ["cannot reach MASTER_ADDR m:1: timed out"]),
        (OSError(113, "No route to host"), ["cannot reach MASTER_ADDR m:1: No route to host"]),
        (ConnectionRefusedError(), []),  # the host is there
    ],
)
def test_preflight_reports_an_unreachable_master_addr_but_not_a_refused_connection(
    monkeypatch: pytest.MonkeyPatch, error: Exception, found: list[str]
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert texts(meeting.reach(MeetingPlace(["n1", "n2"], 1, "m", 1))) == found


def test_preflight_names_a_node_absent_from_the_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "ARRIVAL_S", 1.0)
    assert meet("n1", "n2", absent=["n3"]) == ["preflight n3 failed did not come to the all-reduce within 1 s"]


def test_preflight_names_a_node_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_gpus", lambda: 0 if threading.current_thread().name == "n2" else 4)
    found = [line for line in meet("n1", "n2") if "clock" not in line]
    assert found == ["preflight n2 failed torch sees no GPU there, but on other nodes it does"]


def test_preflight_reports_fewer_gpus_than_slurm_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "8")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 7)
    monkeypatch.setattr(own_checks, "_device", lambda *_: ())
    assert list(own_checks.devices()) == [NodeFinding("torch sees 7 of 8 GPUs")]


@pytest.mark.slow
def test_healthy_nodes_pass_the_preflight(tmp_path: Path) -> None:
    with running(tmp_path, preflight, "", size=3) as ranks:
        assert ranks.answers == [[], [], []], ranks.log


@pytest.mark.slow
def test_preflight_names_a_node_dying_in_the_all_reduce(tmp_path: Path) -> None:
    with running(tmp_path, preflight, "dies", size=3) as ranks:
        assert ranks.join() == [0, 0, 0]
        assert "preflight n3 failed did not come out of the all-reduce" in (tmp_path / "answer-0").read_text()
        assert "failed" not in (tmp_path / "answer-1").read_text().replace("the all-reduce failed", "")


@pytest.mark.slow
def test_preflight_names_a_node_hanging_in_the_all_reduce(tmp_path: Path) -> None:
    with running(tmp_path, preflight, "hangs", size=3) as ranks:
        wait_until((tmp_path / "answer-0").exists, "the first node's findings")
        assert "preflight n3 failed did not come out of the all-reduce" in (tmp_path / "answer-0").read_text()
        assert ranks.processes[2].is_alive()


def meet(*names: str, absent: Sequence[str] = ()) -> list[str]:
    """What the nodes find out, each in a thread of its own. An all-reduce needs processes."""
    found: list[str] = []
    port, nodes = free_port(), [*names, *absent]

    def node(rank: int) -> None:
        place = MeetingPlace(nodes, rank, "127.0.0.1", port)
        found.extend(finding.line(nodes[rank]) for finding in meeting.meet(place, failed=False))

    threads = [threading.Thread(target=node, args=(rank,), name=name) for rank, name in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def texts(findings: object) -> list[str]:
    return [finding.text for finding in findings]  # type: ignore[attr-defined]
