"""A full disk: the attempt waits for room at its start, and later goes on without the lines that it cannot write."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.submission.conftest import RunScript, Stubs, cause, ledger, requeues, worker

FULL = Path("/dev/full")  # whoever writes to it hears that there is no space left
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def fill(tmp_path: Path, *names: str) -> None:
    """There is room for none of these files of the run."""
    for name in names:
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(FULL)


def waits(stubs: Stubs) -> int:
    return stubs.calls("sleep").count("60")


def test_attempt_on_a_full_disk_waits_until_it_can_write(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    fill(tmp_path, "attempts/7.0/chain")
    stubs.on("sleep", f'[ "$(grep -c . "$STUBS/sleep.calls")" -lt 3 ] || rm -f {tmp_path}/run/attempts/7.0/chain')
    done = run_script(worker(tmp_path, "done finished 9"))
    assert done.returncode == 0, done.stderr
    assert waits(stubs) == 3
    assert f"cannot write to {tmp_path}/run: No space left on device. Trying again for 10 minutes." in done.stderr
    assert cause(tmp_path) == "done"


def test_attempt_on_a_lastingly_full_disk_is_requeued_up_to_max_crashes(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    fill(tmp_path, *(f"attempts/7.{restart}/chain" for restart in range(4)))
    values = worker(tmp_path, "done finished 9") | {"restart": {"max_crashes": 2}}
    codes = [run_script(values, restart=restart).returncode for restart in range(4)]
    assert codes == [0, 0, 4, 4]
    assert requeues(stubs) == ["requeue 7"] * 2
    assert waits(stubs) == 4 * 10


def test_attempts_able_to_write_do_not_count_as_full_disk_crashes(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    for restart in range(3):
        run_script(worker(tmp_path, "requeue term 5"), restart=restart)
    fill(tmp_path, "attempts/7.3/chain")
    values = worker(tmp_path, "done finished 9") | {"restart": {"max_crashes": 1}}
    assert run_script(values, restart=3).returncode == 0
    assert len(requeues(stubs)) == 4


def test_full_disk_crashes_are_counted_across_resubmitted_jobs(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", requeue="Requested operation is presently disabled for job 7", code=1)
    fill(tmp_path, "attempts/7.0/chain", "attempts/8.0/chain")
    values = worker(tmp_path, "done finished 9") | {"restart": {"max_crashes": 1}}
    assert run_script(values).returncode == 0
    [call] = stubs.calls("sbatch")
    passed = dict(word.split("=", 1) for word in call.split() if word.startswith("CLUSTERDP_"))
    assert run_script(values, job=8, **passed).returncode == 4
    assert len(stubs.calls("sbatch")) == 1


def test_cancelled_job_is_not_requeued_because_of_a_full_disk(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("COMPLETING", "None")
    fill(tmp_path, "attempts/7.0/chain")
    assert run_script(worker(tmp_path, "done finished 9")).returncode == 4
    assert requeues(stubs) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The run folder on a disk of its own."""
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("to mount a small disk takes root")
    folder = tmp_path / "run"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_attempt_on_a_really_full_tmpfs_waits_and_is_requeued(
    run_script: RunScript, stubs: Stubs, small_disk: Path, tmp_path: Path
) -> None:
    values = worker(tmp_path, None, code=9)
    full: dict[str, object] = {"python": str(tmp_path / "python"), "setup": f"cat /dev/zero >{small_disk}/filler"}
    stubs.on("sleep", f'[ "$(grep -cx 60 "$STUBS/sleep.calls")" -lt 12 ] || rm -f {small_disk}/filler')
    codes = [run_script(values | {"launch": full}, restart=restart).returncode for restart in range(2)]
    assert codes == [0, 0]
    assert requeues(stubs) == ["requeue 7"] * 2
    assert waits(stubs) == 12  # ten in vain; in the second attempt there was room after two
    assert not cause(tmp_path, "7.0")  # there was no room for the word
    assert cause(tmp_path, "7.1") == "start"


@pytest.mark.parametrize(
    ("outcome", "code", "expected", "requeued"),
    [("done finished 9", 0, 0, False), ("requeue term 5", 0, 0, True), (None, 9, 0, True)],
)
def test_disk_full_during_an_attempt_changes_neither_exit_code_nor_requeue(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, outcome: str | None, code: int, expected: int, requeued: bool
) -> None:
    fill(tmp_path, "attempts/7.0/cause", "attempts/7.0/exit", "events/7.0-batch.jsonl")
    done = run_script(worker(tmp_path, outcome, code))
    assert done.returncode == expected
    assert requeues(stubs) == ["requeue 7"] * requeued
    lines = done.stderr.splitlines()
    assert all(line.startswith("clusterdp: ") for line in lines), done.stderr  # and none of bash's own
    assert [line.split(": ")[2].split(".")[0] for line in lines if "cannot write" in line][:2] == [
        'cannot write the event "started"',
        "cannot write attempts/7",
    ]


def test_attempt_with_an_empty_cause_file_counts_as_disk_full(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    """The file could be made, and the word not be written into it."""
    values = worker(tmp_path, None, code=9) | {"restart": {"max_crashes": 1}}
    run_script(values)
    (tmp_path / "run/attempts/7.0/cause").write_text("")
    (tmp_path / "run/events/7.0-batch.jsonl").unlink()  # else the cause is that of the ledger
    assert run_script(values, restart=1).returncode == 9
    assert cause(tmp_path, "7.0") == "disk"
    assert ("requeued", "disk") in ledger(tmp_path)


@pytest.mark.parametrize("empty", [True, False])
def test_attempt_without_its_cause_note_has_the_cause_in_its_ledger(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, empty: bool
) -> None:
    values = worker(tmp_path, None, code=9) | {"restart": {"max_crashes": 3}}
    run_script(values)
    note = tmp_path / "run/attempts/7.0/cause"
    assert note.read_text() == "start\n"
    note.write_text("") if empty else note.unlink()
    run_script(values, restart=1)
    assert [each for each in ledger(tmp_path) if each[0] == "requeued"] == [("requeued", "start")] * 2
