"""`submit` on a cluster behind a real sshd: its code travels, and exactly one job comes of it, whenever the connection
is cut."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from clusterdp.errors import RemoteError, SubmitInDoubt
from clusterdp.remote.received_project import SentFile, Transfer, prepare
from tests.remote.conftest import Start
from tests.remote.sshd import Sshd
from tests.waiting import wait_for


def there(sshd: Sshd, project: Path) -> Path:
    return sshd.home / "clusterdp" / project.name


def jobs(folder: Path) -> list[str]:
    """The jobs of all runs in a project's folder there, by their ledgers."""
    return sorted(path.name.split("-")[1] for path in folder.glob("runs/*/events/submit-*-submit.jsonl"))


def test_code_travels_as_the_snapshot_would_have_it(sshd: Sshd, project: Path) -> None:
    subprocess.run(["git", "init", "-q", project], check=True)
    (project / ".gitignore").write_text("data.npy\n")
    (project / "data.npy").write_bytes(b"\0" * 100)
    (project / ".env").write_text("KEY=1")
    (project / ".github").mkdir()
    (project / ".github" / "flow.yml").write_text("on: push\n")
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "same.py").symlink_to("train.py")
    (project / "far.py").symlink_to("/etc/passwd")
    for words in (["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", project, *words], check=True)
    done = sshd.on("submit", "c.yaml", "run_dir=runs/a", cwd=project)
    assert done.returncode == 0, done.stderr
    code = there(sshd, project) / "runs/a/code"
    assert {str(path.relative_to(code)) for path in code.rglob("*") if not path.is_dir()} == {
        *(".gitignore", ".github/flow.yml", "c.yaml", "run.sh", "same.py", "train.py")
    }
    assert os.access(code / "run.sh", os.X_OK) and (code / "same.py").is_symlink()
    assert "Not sent, for secrets: .env." in done.stderr
    assert "Not sent, for it leads out of the project: far.py." in done.stderr
    assert "Not sent, for git ignores it: data.npy" in done.stderr
    source = json.loads((there(sshd, project) / "runs/a/source.json").read_text())
    head = subprocess.run(["git", "-C", project, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert source["git"]["commit"] == head


def test_unchanged_files_are_not_sent_again(sshd: Sshd, project: Path) -> None:
    assert "3 sent" not in sshd.on("submit", "c.yaml", cwd=project).stderr
    (project / "train.py").write_text("print('other')\n")
    (project / "more.py").write_text("x = 1\n")
    (project / "old.py").write_text("x = 2\n")
    assert "Code: 4 files, 3 sent" in sshd.on("submit", "c.yaml", cwd=project).stderr
    (project / "old.py").unlink()
    done = sshd.on("submit", "c.yaml", "run_dir=runs/last", cwd=project)
    assert "Code: 3 files, 0 sent" in done.stderr
    names = {path.name for path in (there(sshd, project) / "runs/last/code").iterdir()}
    assert names == {"c.yaml", "train.py", "more.py"}
    assert not (there(sshd, project) / "old.py").exists()


def test_files_changed_there_are_not_written_over(sshd: Sshd, project: Path) -> None:
    sshd.on("submit", "c.yaml", cwd=project)
    edited = there(sshd, project) / "train.py"
    edited.write_text("print('edited on the login node')\n")
    (project / "train.py").write_text("print('edited here')\n")
    done = sshd.on("submit", "c.yaml", cwd=project)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "train.py: changed there, or not from here." in done.stderr
    assert edited.read_text() == "print('edited on the login node')\n"


def test_other_project_of_the_same_name_is_refused(sshd: Sshd, project: Path) -> None:
    sshd.on("submit", "c.yaml", cwd=project)
    other = project / "deeper" / project.name
    other.mkdir(parents=True)
    (other / "c.yaml").write_text("command: 'true'\n")
    done = sshd.on("submit", "c.yaml", cwd=other)
    assert done.returncode == 4
    assert f"holds the project of {project}, and this is {other}. Set remote.folder" in done.stderr


def test_config_outside_of_the_project_is_refused(sshd: Sshd, project: Path) -> None:
    (project / "sub").mkdir()
    before = len(sshd.calls)
    done = sshd.on("submit", "../c.yaml", cwd=project / "sub")
    assert (done.returncode, done.stderr.count("\n"), len(sshd.calls)) == (2, 1, before)
    assert "../c.yaml: is outside of the project" in done.stderr
    (project / "sub/d.yaml").write_text("defaults: [../c.yaml]\n")
    assert "c.yaml: is outside of the project" in sshd.on("submit", "d.yaml", cwd=project / "sub").stderr


def test_run_dir_known_there_alone_is_refused(sshd: Sshd, project: Path) -> None:
    before = len(sshd.calls)
    done = sshd.on("submit", "c.yaml", "run_dir=${oc.env:SCRATCH}/a", cwd=project)
    assert (done.returncode, done.stderr.count("\n"), len(sshd.calls)) == (2, 1, before)


def test_large_files_are_refused_before_the_connection(sshd: Sshd, project: Path) -> None:
    with open(project / "data.bin", "wb") as file:
        file.truncate(2 << 20)
    before = len(sshd.calls)
    done = sshd.on("submit", "c.yaml", "snapshot.max_mb=1", cwd=project)
    assert (done.returncode, len(sshd.calls)) == (2, before)
    assert "snapshot.max_mb" in done.stderr and "data.bin (2 MB)" in done.stderr


def test_folder_of_somebody_else_is_refused(sshd: Sshd, project: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    folder = there(sshd, project)
    folder.mkdir(parents=True)
    os.chown(folder, 1, 1)
    done = sshd.on("submit", "c.yaml", cwd=project)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "belongs to somebody else. Set remote.folder" in done.stderr


def test_dry_run_sends_the_config_alone_and_prints_the_script_there(sshd: Sshd, project: Path) -> None:
    (project / "c.yaml").write_text("entry: train:main\nparams: {lr: 0.1}\n")
    (project / "train.py").write_text("def main(job, lr): ...\n")
    dry = sshd.on("submit", "c.yaml", "--dry-run", "run_dir=runs/a", cwd=project)
    assert dry.returncode == 0, dry.stderr
    assert "Code: 2 files, 2 would be sent" in dry.stderr and "c.yaml, train.py" in dry.stderr
    folder = there(sshd, project)
    assert [path.name for path in folder.iterdir()] == [".clusterdp"]
    assert not list((folder / ".clusterdp").glob("config-*"))
    assert sshd.on("submit", "c.yaml", "run_dir=runs/a", cwd=project).returncode == 0
    assert dry.stdout == (folder / "runs/a/job.sbatch").read_text()


def test_sweep_resume_and_again_run_there(sshd: Sshd, project: Path) -> None:
    sweep = sshd.on("submit", "c.yaml", "--sweep", "params.x=1,2", "run_dir=runs/s", "--watch", cwd=project)
    assert sweep.returncode == 2 and "params" in sweep.stderr  # a command without params
    (project / "c.yaml").write_text("command: [python, train.py, '${params.x}']\nparams: {x: 0}\n")
    sweep = sshd.on("submit", "c.yaml", "--sweep", "params.x=1,2", "run_dir=runs/s", "--watch", cwd=project)
    assert sweep.returncode == 0, sweep.stdout + sweep.stderr
    assert "2 elements" in sweep.stdout
    again = sshd.on("again", "runs/s/1", cwd=project)
    assert again.returncode == 0, again.stderr
    assert "runs/1-2" in again.stdout or "runs/again-2" in again.stdout
    resumed = sshd.on("resume", "runs/s/1", "params.x=3", cwd=project)
    assert resumed.returncode == 0, resumed.stderr


def test_cut_transfer_leaves_the_project_alone_and_goes_on(tmp_path: Path) -> None:
    source, folder = tmp_path / "here", tmp_path / "there"
    source.mkdir()
    prepare(folder)
    for name in "abc":
        (source / name).write_text(name * 1000)
    files = {name: SentFile.of(source / name, (source / name).lstat()) for name in "abc"}
    sent = {"origin": ["h", "/p"], "files": files}
    transfer = Transfer(folder, sent)
    assert transfer.lacking() == ["a", "b", "c"]
    content = tmp_path / "cut"
    content.write_bytes(b"a" * 1000 + b"b" * 500)
    with content.open("rb") as stream, pytest.raises(RemoteError, match="before all files had come"):
        transfer.receive(["a", "b", "c"], stream)
    assert [path.name for path in folder.iterdir()] == [".clusterdp"]
    transfer = Transfer(folder, sent)
    assert transfer.lacking() == ["b", "c"]
    content.write_bytes(b"b" * 1000 + b"c" * 1000)
    with content.open("rb") as stream:
        transfer.receive(["b", "c"], stream)
    transfer.put_in_place()
    assert {path.name: path.read_text()[0] for path in folder.iterdir() if path.is_file()} == {
        "a": "a",
        "b": "b",
        "c": "c",
    }
    assert Transfer(folder, sent).lacking() == []


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", ".clusterdp/project.json", ""])
def test_received_name_outside_of_the_project_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RemoteError, match="cannot be a file of a project"):
        Transfer(tmp_path, {"origin": ["h", "/p"], "files": {name: [1, 1, 0o644, ""]}})


def submitting(sshd: Sshd, project: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["clusterdp", "--on", "cluster", "submit", "c.yaml", *words],
        cwd=project,
        env=sshd.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SLOW = """#!/bin/sh
touch {folder}/at-sbatch
while [ ! -e {folder}/go-on ]; do sleep 0.05; done
{sbatch} "$@"
"""


@pytest.fixture
def slow_sbatch(start_sshd: Start, slurm: dict[str, str], tmp_path: Path) -> Sshd:
    """A cluster whose sbatch waits for a file `go-on` in its home."""
    folder = tmp_path / "bin"
    folder.mkdir()
    sshd = start_sshd(there={"PATH": f"{folder}:{slurm['PATH']}"})
    sbatch = next(Path(each, "sbatch") for each in slurm["PATH"].split(":") if Path(each, "sbatch").exists())
    (folder / "sbatch").write_text(SLOW.format(folder=sshd.home, sbatch=sbatch))
    (folder / "sbatch").chmod(0o755)
    (sshd.here / "p").mkdir()
    (sshd.here / "p" / "c.yaml").write_text("command: 'true'\n")
    return sshd


def test_call_cut_in_sbatch_is_settled_by_the_next_call(slow_sbatch: Sshd) -> None:
    sshd, project = slow_sbatch, slow_sbatch.here / "p"
    first = submitting(sshd, project)
    wait_for("sbatch", (sshd.home / "at-sbatch").exists, 60)
    sshd.close_master()  # cuts the connection
    said = first.communicate(timeout=60)[1]
    assert first.returncode == SubmitInDoubt.exit_code
    assert "the answer is not whole. It is unknown whether the run was submitted" in said
    sshd.open_master()
    (sshd.home / "go-on").touch()
    again = sshd.on("submit", "c.yaml", cwd=project)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("Submitted job ")
    assert "which was cut. Nothing more was submitted" in again.stderr
    assert len(jobs(there(sshd, project))) == 1
    assert sshd.on("submit", "c.yaml", cwd=project).returncode == 0
    assert len(jobs(there(sshd, project))) == 2


def test_call_killed_in_sbatch_is_found_in_the_queue(slow_sbatch: Sshd) -> None:
    sshd, project = slow_sbatch, slow_sbatch.here / "p"
    (project / "c.yaml").write_text("command: 'true'\nresources: {extra: {begin: now+1hour}}\n")  # no attempt begins
    first = submitting(sshd, project, "run_dir=runs/a")
    wait_for("sbatch", (sshd.home / "at-sbatch").exists, 60)
    calls = there(sshd, project) / ".clusterdp/calls"
    record = json.loads(next(calls.iterdir()).read_text())
    os.kill(record["pid"], signal.SIGKILL)  # sbatch lives on
    first.communicate(timeout=60)
    assert first.returncode == SubmitInDoubt.exit_code
    unknown = sshd.on("list", cwd=project)
    assert "it is unknown whether Slurm has its job, until " in unknown.stderr
    (sshd.home / "go-on").touch()
    script = there(sshd, project) / "runs/a/job.sbatch"
    os.utime(script, (record["time"] - 60,) * 2)  # MessageTimeout has passed
    record["time"] -= 60
    next(path for path in calls.iterdir() if not path.suffix).write_text(json.dumps(record))
    wait_for("the job", lambda: "runs/a" in sshd.ssh("cluster", "squeue -t all -o %o").stdout, 30)
    settled = sshd.on("list", cwd=project)
    assert "which was cut: Submitted job " in settled.stderr
    assert len(jobs(there(sshd, project))) == 1
    assert sshd.on("list", cwd=project).stderr == ""


def test_settled_call_cannot_begin_any_more(sshd: Sshd, project: Path) -> None:
    from clusterdp.remote import calls

    folder = there(sshd, project)
    prepare(folder)
    assert calls.settle(folder, "abc").state == "none"
    with pytest.raises(RemoteError, match="too late"):
        calls.begin(folder, "abc", "runs/a")
    assert calls.settle(folder, "abc").state == "none"


def test_interrupted_submit_ends_no_submit_there(slow_sbatch: Sshd) -> None:
    sshd, project = slow_sbatch, slow_sbatch.here / "p"
    first = submitting(sshd, project)
    wait_for("sbatch", (sshd.home / "at-sbatch").exists, 60)
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=60)[1]
    assert "interrupted. It is unknown whether the run was submitted" in said
    (sshd.home / "go-on").touch()
    assert "which was cut: Submitted job " in sshd.on("list", cwd=project).stderr
    assert len(jobs(there(sshd, project))) == 1


def test_call_of_another_terminal_is_left_alone(slow_sbatch: Sshd) -> None:
    sshd, project = slow_sbatch, slow_sbatch.here / "p"
    first = submitting(sshd, project)
    wait_for("sbatch", (sshd.home / "at-sbatch").exists, 60)
    assert sshd.on("list", cwd=project).stderr == ""
    (sshd.home / "go-on").touch()
    said = first.communicate(timeout=60)
    assert first.returncode == 0, said
    assert not list((sshd.here / "state/clusterdp/calls/cluster").iterdir())


def cut_at_random(sshd: Sshd, project: Path, seed: int, longest_s: float) -> bool:
    """Submits, ends ssh after a random time, and submits once more. Returns whether the first call was cut."""
    first = submitting(sshd, project)
    try:
        first.communicate(timeout=random.Random(seed).uniform(0, longest_s))
    except subprocess.TimeoutExpired:
        for pid in children(first.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    said = "".join(first.communicate(timeout=120))
    if first.returncode == 0:
        return False
    again = sshd.on("submit", "c.yaml", cwd=project)
    assert again.returncode == 0, said + again.stderr
    return True


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True).stdout
    return [int(word) for word in listed.split()]


@pytest.mark.parametrize("cuts", [10, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_calls_cut_at_random_instants_submit_one_job_each(sshd: Sshd, project: Path, cuts: int) -> None:
    begun = time.monotonic()
    assert sshd.on("submit", "c.yaml", cwd=project).returncode == 0
    longest_s = time.monotonic() - begun
    cut = sum(cut_at_random(sshd, project, seed, longest_s) for seed in range(cuts))
    folder = there(sshd, project)
    assert cut > cuts / 20  # on a busy machine, most are over before
    listed = sshd.ssh("cluster", "squeue -h -t all -o %o").stdout.splitlines()
    assert len([line for line in listed if line.startswith(f"{folder}/")]) == len(jobs(folder)) == cuts + 1
    assert sshd.on("list", cwd=project).stderr == ""
