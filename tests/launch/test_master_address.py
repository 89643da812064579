"""Where the script lets the ranks meet, and until when: a wrong host or port, and the whole job hangs."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from clusterdp import config
from clusterdp.launch.script import render_part
from clusterdp.launch.script_spec import make_spec
from clusterdp.slurm.hostlist import expand

RECORD = json.loads((Path(__file__).parent.parent / "slurm_facts" / "nodelists.json").read_text())
WRITTEN_BY_SLURM = sorted(
    {row["out"] for row in RECORD["compress"] if row["out"]} | {"r[2-3]n[07-09]c[1,5]", "r[2-3]-n[01-03],m1"}
)

# Slurm's commands, as functions. All addresses are of this machine: the script connects to the port that it chooses.
STAND_INS = """\
job=$SLURM_JOB_ID run_dir=/run attempt=7.0 logs=/run/logs
squeue() { echo "${LEFT-}"; }
getent() { case $2 in localhost) echo "10.0.0.1 STREAM" ;; near1) echo "127.0.1.1 STREAM" ;; *) return 2 ;; esac; }
scontrol() { echo "NodeName=$3 NodeAddr=127.0.0.1 Version=22.05.8"; }
"""


def met(after: str, **environ: str) -> list[str]:
    """The lines that `after` prints, which comes after the part of the script."""
    part = render_part(
        make_spec(config.from_mapping({"command": "true"}), Path("/run"), Path("/"), "python"), "rendezvous.sh"
    )
    variables = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", **environ}
    done = subprocess.run(
        ["bash", "-c", f"{STAND_INS}\nmeet() {{\n{part}\n}}\n{after}"], env=variables, capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_first_host_of_a_list_is_the_one_that_slurm_expands_first(tmp_path: Path) -> None:
    lists, asked = tmp_path / "lists", tmp_path / "asked"
    lists.write_text("".join(f"{text}\n" for text in WRITTEN_BY_SLURM))
    spy = f'scontrol() {{ echo "$3" >>{asked}; echo NodeAddr=127.0.0.1; }}'
    met(f"{spy}\nwhile read -r SLURM_JOB_NODELIST <&9; do meet; done 9<{lists}")
    assert asked.read_text().split() == [expand(text)[0] for text in WRITTEN_BY_SLURM]


@pytest.mark.parametrize(
    ("host", "address"),
    [("localhost", "localhost"), ("near1", "127.0.0.1"), ("unknown1", "127.0.0.1")],
    ids=["leads here from outside", "leads to the loopback", "does not resolve"],
)
def test_a_name_that_other_nodes_cannot_use_gives_way_to_the_address_of_the_node(host: str, address: str) -> None:
    assert met('meet; echo "$MASTER_ADDR"', SLURM_JOB_NODELIST=f"{host},n[2-3]") == [address]


def test_a_port_at_which_somebody_answers_is_left_to_them() -> None:
    with socket.socket() as busy:
        for job in range(7, 107):  # until there is one whose port is free
            first = int(met('meet; echo "$MASTER_PORT"', SLURM_JOB_ID=str(job))[0])
            try:
                busy.bind(("127.0.0.1", first))
                break
            except OSError:
                continue
        busy.listen()
        assert met('meet; echo "$MASTER_PORT"', SLURM_JOB_ID=str(job)) == [str(first + 1)]


def test_a_new_attempt_meets_at_another_port() -> None:
    ports = [met('meet; echo "$MASTER_PORT"', SLURM_RESTART_COUNT=str(count)) for count in range(3)]
    assert len({port[0] for port in ports}) == 3


@pytest.mark.parametrize(
    ("left", "seconds"),
    [("5:00", 300), ("08:09", 489), ("1:00:00", 3600), ("2-03:04:05", 183845), ("UNLIMITED", None), ("", None)],
)
def test_the_end_of_the_time_is_counted_from_when_it_was_asked(left: str, seconds: int | None) -> None:
    assert met('meet; echo "$((CLUSTERDP_JOB_END_TIME ? CLUSTERDP_JOB_END_TIME - asked : 0))"', LEFT=left) == [
        str(seconds or 0)
    ]
