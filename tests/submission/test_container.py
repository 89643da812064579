"""What a container's engine does with the environment of the ranks. (A stand-in of Apptainer that hands on nothing but
what its user has named: as with --cleanenv, APPTAINER_CLEANENV=1 or APPTAINER_CONTAINALL=1.)"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.submission.conftest import RunScript, Stubs, cause, last_event
from tests.submission.test_hostile_configs import TELL

APPTAINER = """#!/bin/bash
[ "$APPTAINER_NO_EVAL" = 1 ] || exit 9 # else a shell would read the values
while [ "$1" != /images/torch.sif ]; do shift; done
words=()
for name in "${!APPTAINERENV_@}"; do words+=("${name#APPTAINERENV_}=${!name}"); done
exec env -i "${words[@]}" "${@:2}"
"""
FATAL = "FATAL:   could not open image /images/torch.sif: no such file or directory"
CONTAINER = {"runtime": "apptainer", "image": "/images/torch.sif"}


def engine(stubs: Stubs, text: str = APPTAINER) -> None:
    (stubs.folder / "apptainer").write_text(text)
    (stubs.folder / "apptainer").chmod(0o755)


@pytest.mark.parametrize("more", [{}, {"launcher": "torchrun"}])
def test_variables_reach_a_container_with_a_clean_environment(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, more: dict[str, Any]
) -> None:
    engine(stubs)
    env = {"PATH": "/opt/mine:/usr/bin:/bin", "LD_LIBRARY_PATH": "/opt/$HOME/lib", "A": "it's $(id) \\x\n2"}
    env["TELL"] = str(tmp_path / "told")
    launch = {"container": CONTAINER, "env": env, "python": sys.executable, **more}
    done = run_script({"command": [sys.executable, "-c", TELL], "launch": launch})
    assert cause(tmp_path) == "done", done.stderr
    seen = json.loads((tmp_path / "told").read_text())[1]
    assert {name: seen[name] for name in env} == env
    assert {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "SLURM_JOB_ID": "7"}.items() <= seen.items()
    assert {"MASTER_ADDR", "MASTER_PORT", "CLUSTERDP_RUN_DIR", "CLUSTERDP_ATTEMPT", "PYTHONPATH"} <= seen.keys()
    assert "HOME" not in seen


def test_repeated_fatal_line_of_the_engine_ends_the_run(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    engine(stubs, f"#!/bin/bash\necho '{FATAL}' >>$CLUSTERDP_LOGS/rank-00000.out\nexit 255\n")
    values = {"command": ["true"], "launch": {"container": CONTAINER}}
    assert run_script(values).returncode == 0
    assert run_script(values, restart=1).returncode == 255
    assert last_event(tmp_path, "7.1")["reason"] == f"the same error as before: {FATAL}"


@pytest.mark.parametrize(("other", "ends"), [("n2", True), ("n1", False)])
def test_fatal_line_on_two_nodes_is_not_tried_on_more_nodes(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, other: str, ends: bool
) -> None:
    (stubs.folder / "nodes").write_text("".join(f"idle n{n} 8|16000|(null)|(null)\n" for n in range(1, 5)))
    lines = [f"echo '{FATAL}' | tee -a $CLUSTERDP_LOGS/rank-0000{{0,1}}.out >/dev/null"]
    for task, node in enumerate(("n1", other)):
        lines.append(f"echo 'srun: error: {node}: task {task}: Exited with exit code 255' >>{tmp_path}/run/slurm-7.out")
    engine(stubs, "\n".join(["#!/bin/bash", *lines, "exit 255\n"]))
    values = {"command": ["true"], "launch": {"container": CONTAINER}}
    assert run_script(values).returncode == 0
    assert run_script(values, restart=1).returncode == (255 if ends else 0)
