"""A bash and a few stand-ins for Slurm's commands, to run a rendered script in. What they answer are recorded texts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from clusterdp import config
from clusterdp.submission.render import script
from clusterdp.submission.render.script import render
from clusterdp.submission.render.script_spec import make_spec
from clusterdp.submission.snapshot.batch_copy import write_batch

HOSTILE = [
    "it's",
    'say "hi"',
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned #",
    "a\nb\n#SBATCH --nodes=9",
    "-x",
    "--",
    "$HOME ${HOME} ~ *",
    "back\\slash\\",
    " leading and trailing ",
    "%j %t %%",
    "{{ name }} {% raw %} {* c *}",
    "END_OF_TASK\nEND_OF_SCRIPT",
    "ünïcode ☃",
    "",
]

SRUN = """#!/bin/bash
# one rank of the step: drop srun's own words, then become the task
echo "$@" >>"$STUBS/srun.args"
while [ "${1#-}" != "$1" ]; do shift; done
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1
exec "$@"
"""
SCONTROL = """#!/bin/bash
echo "$*" >>"$STUBS/scontrol.calls"
[ ! -e "$STUBS/on.scontrol" ] || . "$STUBS/on.scontrol"
case "$*" in
  "show hostnames"*) echo "${@: -1}" | sed "$(cat "$STUBS/expands" 2>/dev/null)" | tr , '\n' ;;
  "show node"*) echo "NodeName=n1 Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=host Version=22.05.8" ;;
  *"show job"*) cat "$STUBS/job" ;;
  requeue*) cat "$STUBS/requeue" >&2; exit "$(cat "$STUBS/requeue.exit")" ;;
esac
"""

SBATCH = """#!/bin/bash
echo "$@" $(env | grep -E '^CLUSTERDP_(CHAIN|REPLACES|UNWRITTEN)=' | sort) >>"$STUBS/sbatch.calls"
[ ! -e "$STUBS/on.sbatch" ] || . "$STUBS/on.sbatch"
echo 4321
"""
SQUEUE = """#!/bin/bash
case "$*" in
  *%L*) echo 1-02:03:04 N/A N/A ;;
  *) [ ! -e "$STUBS/waiting" ] || cat "$STUBS/waiting" ;;
esac
"""
SINFO = """#!/bin/bash
# two kinds of questions: what are the nodes of this job like, and which are there; or which of these are down
echo "$*" >>"$STUBS/sinfo.calls"
case "$*" in
  *--states=*) [ ! -e "$STUBS/down" ] || sed 's/$/|down*/' "$STUBS/down" ;;
  *--nodes=*) echo "8|16000|(null)|(null)" ;;
  *) [ ! -e "$STUBS/nodes" ] || cat "$STUBS/nodes" ;;
esac
"""
SLEEP = """#!/bin/bash
# The one that waits beside srun for five minutes is as long as srun; a file `impatient` makes it short.
[ "$1" != 300 ] || [ -e "$STUBS/impatient" ] || exec /bin/sleep 300
echo "$1" >>"$STUBS/sleep.calls"
[ ! -e "$STUBS/on.sleep" ] || . "$STUBS/on.sleep"
"""


class Stubs:
    """A folder on PATH with srun, scontrol, squeue and sbatch, and the answers that they give."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name, text in {
            "srun": SRUN,
            "scontrol": SCONTROL,
            "squeue": SQUEUE,
            "sinfo": SINFO,
            "scancel": '#!/bin/bash\necho "$*" >>"$STUBS/scancel.calls"\n',
            "sbatch": SBATCH,
            "getent": "#!/bin/bash\nexit 2\n",
            "sleep": SLEEP,
        }.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.answer("RUNNING", "None")

    def answer(
        self,
        state: str,
        reason: str,
        preempt_time: str = "None",
        requeue: str = "",
        code: int = 0,
        restarts: int = 0,
        excluded: str = "(null)",
    ) -> None:
        text = f"JobId=1 JobName=x\n   JobState={state} Reason={reason} Dependency=(null)\n"
        text += f"   PreemptEligibleTime=2026-01-01T00:00:00 PreemptTime={preempt_time}\n"
        text += f"   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0\n"
        text += f"   ReqNodeList=(null) ExcNodeList={excluded}\n   NodeList=n1\n"
        (self.folder / "job").write_text(text)
        (self.folder / "requeue").write_text(requeue)
        (self.folder / "requeue.exit").write_text(str(code))

    def on(self, command: str, lines: str) -> None:
        """Bash lines that the stand-in (scontrol, sbatch, sleep) runs before it answers; its words are in "$*"."""
        (self.folder / f"on.{command}").write_text(lines + "\n")

    def expands(self, *nodes: str) -> None:
        """The job, whose NodeList is n1 above, has these nodes."""
        (self.folder / "expands").write_text(rf"s/-first,n\(1\|\[1-[0-9]\]\),c/-first,{','.join(nodes)},c/")

    def calls(self, command: str) -> list[str]:
        path = self.folder / f"{command}.calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    folder = tmp_path / "stubs"
    folder.mkdir()
    return Stubs(folder)


@pytest.fixture(autouse=True, scope="session")
def templates_are_compiled_once() -> Iterator[None]:
    """For all scripts of the tests: it takes most of the time of a script's rendering."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "_environment", cache(script._environment))
        yield


RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_script(tmp_path: Path, stubs: Stubs) -> RunScript:
    """Render a config and run its script in a real bash as the job `job`, in its `restart`th life."""

    def run(
        values: dict[str, object], *, job: int = 7, restart: int = 0, **more: str
    ) -> subprocess.CompletedProcess[str]:
        run_dir = tmp_path / "run"
        restarts = {"in_place": False, **dict(values.get("restart", {}))}  # type: ignore[call-overload]
        loaded = config.from_mapping({**values, "restart": restarts})
        rendered = render(make_spec(loaded, run_dir, tmp_path, sys.executable))
        (run_dir / "code").mkdir(parents=True, exist_ok=True)
        (run_dir / "job.sbatch").write_text(rendered.text)
        if not (run_dir / "batch").is_dir():
            write_batch(run_dir / "batch", {})
        (run_dir / "batch/rules.json").write_text(json.dumps(rendered.rules))
        environ = {
            "PATH": f"{stubs.folder}:{os.environ['PATH']}",
            "STUBS": str(stubs.folder),
            "HOME": str(tmp_path),
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_NODELIST": "n1",
            "SLURM_JOB_PARTITION": "main",
            **({"SLURM_RESTART_COUNT": str(restart)} if restart else {}),
            **more,
        }
        return subprocess.run(
            ["bash", str(run_dir / "job.sbatch")],
            check=False,
            env=environ,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=150,
        )

    return run


LEAVE = (  # the outcome is never seen empty, as in write_durably()
    "at={run}/attempts/$CLUSTERDP_ATTEMPT; mkdir -p $at; echo {outcome} >$at/new; mv $at/new $at/outcome; exit {code}"
)


def worker(tmp_path: Path, outcome: str | None, code: int = 0) -> dict[str, object]:
    """An entry job whose interpreter is a shell script that leaves this outcome and exit code."""
    python = tmp_path / "python"
    lines = LEAVE.format(run=tmp_path / "run", outcome=f"'{outcome}'", code=code) if outcome else f"exit {code}"
    python.write_text(f"#!/bin/bash\n{lines}\n")
    python.chmod(0o755)
    return {"entry": "a:b", "launch": {"python": str(python)}}


def ledger(tmp_path: Path) -> list[tuple[str, str | None]]:
    lines = [line for path in (tmp_path / "run/events").glob("*-batch.jsonl") for line in path.read_text().splitlines()]
    events = sorted((json.loads(line) for line in lines), key=lambda event: float(event["time"]))
    return [(event["event"], event.get("cause")) for event in events]


def last_event(tmp_path: Path, attempt: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((tmp_path / f"run/events/{attempt}-batch.jsonl").read_text().splitlines()[-1])
    return event


def requeues(stubs: Stubs) -> list[str]:
    return [call for call in stubs.calls("scontrol") if call.startswith("requeue")]


def cause(tmp_path: Path, attempt: str = "7.0") -> str | None:
    path = tmp_path / "run/attempts" / attempt / "cause"
    return path.read_text().strip() if path.exists() else None
