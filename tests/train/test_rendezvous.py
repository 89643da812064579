"""Where the ranks meet. Each rank derives it alone, so all must come to the same; two jobs on a node must not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterdp.errors import RendezvousError
from clusterdp.slurm.env import SlurmEnv
from clusterdp.train.ranks import rendezvous
from clusterdp.train.ranks.rendezvous import Rendezvous, derive_address, derive_port
from tests.slurm_types.test_env import STEP

TWO_NODES = SlurmEnv.read(STEP)
LINUX = (32_768, 60_999)


def resolving(monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> None:
    def look_up(host: str) -> str:
        if host not in names:
            raise OSError("unknown")
        return names[host]

    monkeypatch.setattr("clusterdp.train.ranks.rendezvous.socket", SimpleNamespace(gethostbyname=look_up))


def test_rendezvous_takes_exported_master_addr_and_port() -> None:
    place = Rendezvous.find(TWO_NODES, {"MASTER_ADDR": "n9", "MASTER_PORT": "1234"})
    assert place.environ() == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "n9",
        "MASTER_PORT": "1234",
    }


def test_master_addr_is_the_first_host_of_the_nodelist(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, {"n1": "10.0.0.1"})
    assert derive_address(TWO_NODES) == "n1"


@pytest.mark.parametrize("names", [{}, {"n1": "127.0.1.1"}])
def test_unresolvable_or_loopback_master_host_falls_back_to_sruns_launch_address(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, str]
) -> None:
    resolving(monkeypatch, names)
    assert derive_address(SlurmEnv.read({**STEP, "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9"})) == "10.0.0.9"
    with pytest.raises(RendezvousError, match=r"MASTER_ADDR: n1 .*Export MASTER_ADDR"):
        derive_address(TWO_NODES)


def test_master_addr_on_one_node_is_the_loopback_address() -> None:
    assert derive_address(SlurmEnv("single")) == "127.0.0.1"


def test_master_ports_of_consecutive_jobs_and_restarts_differ() -> None:
    ports = {
        derive_port(SlurmEnv("srun", job_id=str(job), restart_count=restart), LINUX)
        for job in range(1000, 1100)
        for restart in range(4)
    }
    assert len(ports) == 400


@pytest.mark.parametrize("ephemeral", [LINUX, (49_152, 65_535), (15_000, 65_535), (10_000, 60_999)])
def test_master_port_is_outside_the_ephemeral_range(ephemeral: tuple[int, int]) -> None:
    for job in range(0, 70_000, 997):
        port = derive_port(SlurmEnv("srun", job_id=str(job)), ephemeral)
        assert 1024 < port < 65_536
        assert not ephemeral[0] <= port <= ephemeral[1]


def test_master_port_is_above_1023_if_all_ports_are_ephemeral() -> None:
    assert derive_port(SlurmEnv("srun", job_id="5"), (1024, 65_535)) >= 1024


def test_ephemeral_port_range_comes_from_the_kernel_or_a_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "range").write_text("20000\t30000\n")
    monkeypatch.setattr(rendezvous, "EPHEMERAL_FILE", str(tmp_path / "range"))
    assert rendezvous.ephemeral_range() == (20_000, 30_000)
    monkeypatch.setattr(rendezvous, "EPHEMERAL_FILE", str(tmp_path / "none"))
    assert rendezvous.ephemeral_range() == rendezvous.EPHEMERAL_DEFAULT


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1"])
def test_invalid_master_port_is_refused(port: str) -> None:
    with pytest.raises(RendezvousError, match="MASTER_PORT"):
        Rendezvous.find(TWO_NODES, {"MASTER_ADDR": "n1", "MASTER_PORT": port})
