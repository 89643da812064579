"""What fails before the program runs: it is a failed start with its reason, and never done."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterdp.submission.render.shipped_files import shipped_folder
from clusterdp.submission.snapshot.batch_copy import PROGRAM
from tests.small_disk import fill, small_disk
from tests.submission.conftest import RunScript, Stubs, cause, last_event
from tests.submission.test_script import ARRAYS, CASES, rendered

ONCE = {"max_crashes": 0}
RAN = ["bash", "-c", "touch $HOME/ran"]


def test_scripts_rely_on_no_temporary_file() -> None:
    """bash before 5.1 writes a here-document to a file, and goes on with nothing if it cannot."""
    texts = {case: rendered(CASES[case], ARRAYS.get(case)) for case in CASES}
    for path in [*shipped_folder("sbatch_templates").rglob("*.*"), *PROGRAM.glob("*.bash")]:
        texts[path.name] = path.read_text()
    assert len(texts) > 20
    assert [name for name, text in texts.items() if "<<" in text] == []


@pytest.mark.parametrize(
    "values",
    [{"command": RAN}, {"script": "[ 'it''s' = its ] && touch $HOME/ran"}],
)
def test_program_runs_although_the_disk_for_temporary_files_is_full(
    run_script: RunScript, tmp_path: Path, values: dict[str, Any]
) -> None:
    values = {**values, "launch": {"setup": "export A=it\\'s\n[ $A = \"it's\" ]", "setup_errors": "stop"}}
    with small_disk(tmp_path / "disk", mb=1) as disk:
        fill(disk / "filler")
        done = run_script(values, TMPDIR=str(disk), BASH_COMPAT="5.0")
    assert (cause(tmp_path), (tmp_path / "ran").exists()) == ("done", True), done.stderr


def test_step_without_a_program_is_a_failed_start(run_script: RunScript, tmp_path: Path) -> None:
    template = tmp_path / "mine.j2"
    lines = (shipped_folder("sbatch_templates") / "srun.sbatch.j2").read_text()
    template.write_text(re.sub(r"(?s)task='export.*?exit 127'", "task=''", lines))
    done = run_script({"command": RAN, "launch": {"template": str(template)}, "restart": ONCE})
    assert (done.returncode, cause(tmp_path)) == (4, "start"), done.stderr
    assert "the step has no program" in last_event(tmp_path, "7.0")["error"]


def test_program_without_words_is_a_failed_start(run_script: RunScript, tmp_path: Path) -> None:
    template = tmp_path / "mine.j2"
    lines = (shipped_folder("sbatch_templates") / "srun.sbatch.j2").read_text()
    template.write_text(lines.replace('"${program[@]}"', ""))
    done = run_script({"command": RAN, "launch": {"template": str(template)}, "restart": ONCE})
    assert (done.returncode, cause(tmp_path)) == (127, "start"), done.stderr


MODULE = {"fails": "return 1", "works": "LOADEDMODULES+=:$2/12.4", "is there": ":", "fails quietly": "echo ERROR >&2"}


@pytest.mark.parametrize(
    ("does", "version", "loaded", "starts"),
    [
        ("fails", "", "", False),
        ("works", "", "", True),
        ("fails quietly", "3.2.10", "gcc/13", False),
        ("works", "3.2.10", "gcc/13", True),
        ("is there", "3.2.10", "gcc/13:cuda/12.4", True),
        ("is there", "", "compilers/cuda", True),  # by another name, in Lmod or Environment Modules 4 and later
    ],
)
def test_failed_module_load_is_a_failed_start(
    run_script: RunScript, tmp_path: Path, does: str, version: str, loaded: str, starts: bool
) -> None:
    more = {"BASH_FUNC_module%%": f"() {{ {MODULE[does]}; }}", "LOADEDMODULES": loaded, "MODULE_VERSION": version}
    done = run_script({"command": RAN, "launch": {"modules": ["cuda"]}, "restart": ONCE}, **more)
    assert (done.returncode, cause(tmp_path)) == ((0, "done") if starts else (4, "start")), done.stderr
    assert (tmp_path / "ran").exists() is starts
    if not starts:
        assert last_event(tmp_path, "7.0")["error"].startswith("launch.modules: cuda cannot be loaded on ")


ROUTE = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/net/route")
@pytest.mark.parametrize(
    ("address", "interface"), [("10.1.2.3", "ib0"), ("10.9.2.3", "eth1"), ("192.168.7.9", "eth0"), ("node7", "eth1")]
)
def test_interface_of_gloo_is_found_without_the_program_ip(
    stubs: Stubs, tmp_path: Path, address: str, interface: str
) -> None:
    rows = ["eth0 00000000 0101A8C0 0003 0 0 0 00000000 0 0 0", "eth1 0000000A 00000000 0001 0 0 0 000000FF 0 0 0"]
    (tmp_path / "route").write_text("\n".join([ROUTE, *rows, "ib0 0002010A 00000000 0001 0 0 0 00FFFFFF 0 0 0", ""]))
    for name, lines in {"ip": "exit 127", "getent": "[ $2 = node7 ] && echo '10.9.9.9 STREAM node7'"}.items():
        (stubs.folder / name).write_text(f"#!/bin/bash\n{lines}\n")
        (stubs.folder / name).chmod(0o755)
    script = (PROGRAM / "interface.bash").read_text().replace("/proc/net/route", str(tmp_path / "route"))
    environ = {"PATH": f"{stubs.folder}:{os.environ['PATH']}", "MASTER_ADDR": address}
    words = ["bash", "-c", script + 'echo "$GLOO_SOCKET_IFNAME"']
    assert subprocess.run(words, env=environ, capture_output=True, text=True).stdout == interface + "\n"
