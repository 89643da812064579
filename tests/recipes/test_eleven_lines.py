"""The page that turns any script into a preemptible one: what it shows is what runs, before and after."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.rundir import RunDir, read_events

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "eleven_lines.md").read_text()
STEP = "        optimizer.step()\n"
STOP = "        if loop.step == 30 and 'STOP' in os.environ: os.kill(os.getpid(), 15)\n"


def block(kind: str) -> str:
    (text,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


def script(signs: str) -> str:
    """The lines that have one of these signs."""
    return "".join(line[1:] for line in block("diff").splitlines(keepends=True) if line[0] in signs)


def run(folder: Path, text: str, **env: str) -> tuple[int, str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    plain = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "train.py"]
    done = subprocess.run(words, cwd=folder, env=plain | env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


def weights(folder: Path) -> dict[str, Any]:
    (file,) = folder.rglob("model.pt")
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_eleven_lines_page_adds_at_most_eleven_lines_to_the_script() -> None:
    added = [line for line in block("diff").splitlines() if line.startswith("+")]
    assert len(added) <= 11


@pytest.mark.slow
def test_stopped_any_code_script_resumes_under_plain_python_to_the_same_weights(tmp_path: Path) -> None:
    short = script(" +").replace("epochs = 20", "epochs = 1")
    assert run(tmp_path / "whole", short) == (0, "")
    stopping = "import os\n" + short.replace(STEP, STEP + STOP)
    folder, run_dir = tmp_path / "halves", str(tmp_path / "run")
    code, said = run(folder, stopping, CLUSTERDP_RUN_DIR=run_dir, STOP="1")
    assert code == 75
    assert re.fullmatch(r"clusterdp: stopped at step \d+ \(term\); run it again to go on\.\n", said), said
    assert not [*folder.rglob("model.pt")]
    assert run(folder, stopping, CLUSTERDP_RUN_DIR=run_dir) == (0, "")
    assert same(weights(tmp_path / "whole"), weights(folder))


@pytest.mark.slow
def test_eleven_lines_script_obeys_seed_and_checkpoint_keys_of_the_config(tmp_path: Path) -> None:
    short = script(" +").replace("epochs = 20", "epochs = 1")
    said = {
        "checkpoint": {"every_steps": 40, "every_s": None, "async_save": False, "keep_last": 2},
        "train": {"seed": 7},
    }
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(json.dumps({**said, "profile": {"steps": 6}}))
    seen = "assert torch.initial_seed() == 7\n"  # and the rank
    assert run(tmp_path / "script", short + seen, CLUSTERDP_RUN_DIR=str(tmp_path / "run")) == (0, "")
    saved = [event["step"] for event in read_events(RunDir(tmp_path / "run")) if event["event"] == "saved"]
    assert saved == [40, 80, 113]
    assert len([*(tmp_path / "run" / "checkpoints").glob("step_*")]) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_preempted_any_code_job_ends_with_the_weights_of_an_undisturbed_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # of whom `python` is
    assert "clusterdp" not in script(" -")
    assert run(tmp_path / "before", script(" -")) == (0, "")
    ends = []
    for name, words in (("whole", ["local.preempt_at=null"]), ("halves", [])):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(script(" +"))
        (folder / "train.yaml").write_text(block("yaml"))
        command = [sys.executable, "-m", "clusterdp", "submit", "train.yaml", "--cluster", "local", "run_dir=run"]
        done = subprocess.run(
            [*command, f"launch.env.PYTHONPATH={ROOT}", *words], cwd=folder, capture_output=True, text=True
        )
        logs = "".join(file.read_text() for file in folder.glob("run/attempts/*/logs/*"))
        assert done.returncode == 0, done.stdout + done.stderr + logs
        events = [event["event"] for event in read_events(RunDir(folder / "run"))]
        assert ("restored" in events) == (name == "halves"), events
        ends.append(weights(folder))
    assert ends[0].keys() == weights(tmp_path / "before").keys()
    assert same(*ends)
