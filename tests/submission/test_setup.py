"""launch.setup: a line that cannot have done what it was written for ends the attempt; other failures are on record."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp import config
from clusterdp.errors import ConfigError
from tests.submission.conftest import RunScript, Stubs, cause, last_event, requeues
from tests.submission.test_policies import nodes

PROGRAM = ["bash", "-c", "touch $HOME/ran"]


def run(run_script: RunScript, setup: str, **more: object) -> tuple[int, str]:
    done = run_script({"command": PROGRAM, "launch": {"setup": setup, **more}, "restart": {"max_crashes": 0}})
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("nosuchprogram --x", 127),
        ("module load cuda", 127),
        ("conda activate mine", 127),
        ("source ~/nope/bin/activate", 1),
        (". /nope/activate", 1),
        ("source ./nope.sh 2>/dev/null", 1),
        ("cd /nope", 1),
        ("true && cd ~/nope", 1),
        ("./data.txt", 126),
        ("x=$(nosuchprogram)", 127),
    ],
)
def test_launch_setup_line_with_unusable_program_or_path_ends_the_attempt(
    run_script: RunScript, tmp_path: Path, line: str, code: int
) -> None:
    (tmp_path / "run/code").mkdir(parents=True)
    (tmp_path / "run/code/data.txt").touch()
    got, said = run(run_script, f"true\n{line}\ntouch $HOME/second")
    assert (got, cause(tmp_path)) == (code, "start"), said
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "second").exists()
    words = f"launch.setup: line 2 ended with exit code {code}: {line.removeprefix('true && ')}"
    assert words.replace(" 2>", " 2> ") in said
    assert last_event(tmp_path, "7.0")["error"].startswith(f"launch.setup: line 2 ended with exit code {code}")


@pytest.mark.parametrize(
    "lines",
    [
        "nosuchprogram || true",
        "if false; then :; fi\n[ -e /nope ] && echo there",
        "command -v nosuchprogram || :\nnosuchprogram | cat",
        "shopt -s extglob\necho @(nope|no).sh",
        "declare -x MADE=1\nf() { false; true; }; f\n[ $MADE = 1 ]",
        "cat <<EOF\nEND_OF_SETUP\nEOF\nsource ./env.sh",
        "set -e\n[ -e /nope ] && echo there",
        "return 0\nnosuchprogram",
        "END_OF_SETUP=x",
    ],
)
def test_handled_failures_in_launch_setup_are_not_recorded(run_script: RunScript, tmp_path: Path, lines: str) -> None:
    (tmp_path / "run/code").mkdir(parents=True)
    (tmp_path / "run/code/env.sh").write_text("false\nnosuchprogram\ntrue\n")
    assert run(run_script, lines)[0] == 0
    assert (tmp_path / "ran").exists()
    assert not (tmp_path / "run/attempts/7.0/setup").exists()


def test_failing_lines_of_launch_setup_are_recorded_once_without_ending_the_attempt(
    run_script: RunScript, tmp_path: Path
) -> None:
    (tmp_path / "run/code").mkdir(parents=True)
    (tmp_path / "run/code/env.sh").write_text("false\n")
    assert run(run_script, "for i in 1 2 3; do false; done\n(exit 5)\nsource ./env.sh")[0] == 0
    assert (tmp_path / "run/attempts/7.0/setup").read_text().splitlines() == [
        "line 1 ended with exit code 1: false",
        "line 2 ended with exit code 5: ( exit 5 )",
        "line 3 ended with exit code 1: source ./env.sh",
    ]


@pytest.mark.parametrize(("setup", "more"), [("false", {"setup_errors": "stop"}), ("set -e\nfalse", {})])
def test_setup_errors_stop_or_set_e_ends_the_attempt_at_any_failure(
    run_script: RunScript, tmp_path: Path, setup: str, more: dict[str, object]
) -> None:
    assert run(run_script, setup, **more)[0] == 1
    assert (cause(tmp_path), (tmp_path / "ran").exists()) == ("start", False)


def test_failed_launch_setup_is_tried_once_on_another_node(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    nodes(stubs, "n1", "n2")
    values = {"command": PROGRAM, "launch": {"setup": "source /nope/activate"}}
    first = run_script(values, SLURMD_NODENAME="n1")
    assert (first.returncode, requeues(stubs)) == (0, ["requeue 7"])
    assert any("ExcNodeList=n1" in call for call in stubs.calls("scontrol"))
    again = run_script(values, restart=1, SLURMD_NODENAME="n2", SLURM_JOB_NODELIST="n2")
    assert again.returncode == 1
    assert "the same error as before" in last_event(tmp_path, "7.1")["reason"]


def test_failed_launch_setup_skips_the_preflight(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\ntouch "$STUBS/preflight"\n')
    python.chmod(0o755)
    launch = {"python": str(python), "preflight": True, "setup": "cd /nope"}
    run_script({"entry": "a:b", "launch": launch, "restart": {"max_crashes": 0}})
    assert cause(tmp_path) == "start"
    assert not (stubs.folder / "preflight").exists()


def test_unknown_launch_setup_errors_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"launch.setup_errors: 'ignore'"):
        config.from_mapping({"command": "true", "launch": {"setup_errors": "ignore"}})


OTHER = "mkdir $HOME/other; printf '#!/bin/sh\\nexit 9\\n' >$HOME/other/srun; chmod +x $HOME/other/srun; "


@pytest.mark.parametrize(
    "setup",
    ["PATH=${PATH#*:}", f"{OTHER}PATH=$HOME/other:${{PATH#*:}}", "export LD_LIBRARY_PATH=/conda PYTHONHOME=/nope"],
)
def test_launch_setup_changes_no_command_of_slurm(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, setup: str
) -> None:
    """And run in the environment of before it, while the program gets that of after it."""
    stubs.on("scontrol", 'echo "$LD_LIBRARY_PATH$PYTHONHOME" >>$STUBS/seen')
    values = {"command": ["bash", "-c", "env >$HOME/ran; exit 75"], "launch": {"setup": setup.replace("${", "\\${")}}
    done = run_script(values)
    assert (done.returncode, requeues(stubs)) == (0, ["requeue 7"]), done.stderr
    assert set((stubs.folder / "seen").read_text().split()) == set()
    seen = (tmp_path / "ran").read_text().splitlines()
    assert not any(line.startswith((f"PATH={stubs.folder}", "CLUSTERDP_BEFORE")) for line in seen) or "LD_" in setup
    assert ("LD_LIBRARY_PATH=/conda" in seen) is ("LD_" in setup)
