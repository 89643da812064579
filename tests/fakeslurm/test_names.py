"""Names of nodes lead to this machine in every job, so that MASTER_ADDR may be one."""

import os
import sys
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core import hosts_file, mounts
from tests.fakeslurm.conftest import Desk
from tests.ports import free_port

MEET = """\
import os, socket, sys
first = os.popen("scontrol show hostnames").read().split()[0]
port = int(sys.argv[1])
if os.environ["SLURM_PROCID"] == "0":
    server = socket.create_server((first, port))
    server.accept()[0].sendall(b"well met")
else:
    while True:
        try:
            print(socket.create_connection((first, port)).recv(100).decode())
            break
        except ConnectionRefusedError:
            pass
"""


def test_ranks_connect_to_the_name_of_the_first_node(desk: Desk) -> None:
    if desk.cluster.unknown_names:
        pytest.skip("this system has no /etc/hosts of a process's own; `clusterdp fake up` says what to do")
    (desk.folder / "meet.py").write_text(MEET)
    assert desk.say(f"srun --nodes=2 --ntasks=2 {sys.executable} meet.py {free_port()}") == "well met"
    assert desk.say("srun --nodes=1 grep -c -w -e n1 -e n4 /etc/hosts") == "2"


def test_hosts_file_maps_the_machines_own_name_to_127_0_0_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.uname().nodename
    monkeypatch.setattr(hosts_file, "HOSTS", tmp_path / "debians")
    (tmp_path / "debians").write_text(
        f"127.0.0.1 localhost\n127.0.1.1 {own}.example {own} # Debian's\n172.17.0.2 {own}\n"
    )
    hosts_file.write(["n1"], tmp_path / "hosts")
    lines = [line.split() for line in (tmp_path / "hosts").read_text().splitlines()]
    assert [line[0] for line in lines if own in line] == ["127.0.0.1"]
    assert ["127.0.1.1", f"{own}.example"] in lines


def test_hostname_ip_address_prints_one_address_on_a_node(desk: Desk) -> None:
    """As PyTorch's own example of an sbatch script does, and those of torchtitan, Ray and NeMo."""
    if desk.cluster.unknown_names:
        pytest.skip("this system has no /etc/hosts of a process's own; `clusterdp fake up` says what to do")
    assert desk.say("srun --nodes=1 --ntasks=1 hostname --ip-address") == "127.0.0.1"


def test_fake_cluster_leaves_etc_hosts_of_the_machine_unchanged(cluster: FakeCluster) -> None:
    cluster.run("sinfo")
    assert "fake cluster" not in hosts_file.HOSTS.read_text()


def test_hosts_file_is_removed_if_it_cannot_be_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_show", refuse)
    hosts_file.write(["n1"], tmp_path / "hosts")
    mounts.show({tmp_path / "hosts": hosts_file.HOSTS})
    assert not (tmp_path / "hosts").exists()


def test_hosts_file_is_not_written_if_all_node_names_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_file, "HOSTS", tmp_path / "known")
    (tmp_path / "known").write_text("127.0.0.1 localhost # n3\n127.0.0.1\tn1 n2\n")
    hosts_file.write(["n1", "n2"], tmp_path / "hosts")
    assert hosts_file.unknown(["n1", "n2", "n3"]) == ["n3"]
    assert not (tmp_path / "hosts").exists()


def refuse(files: dict[Path, Path]) -> None:
    raise PermissionError(1, "Operation not permitted")
