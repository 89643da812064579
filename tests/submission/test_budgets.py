"""How often what is tried again, by the script alone; and that who gives up says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoint.test_manifest import manifest, write
from tests.submission.conftest import RunScript, Stubs, cause, last_event, requeues, worker


def test_run_without_new_checkpoints_gives_up_and_records_the_reason(run_script: RunScript, tmp_path: Path) -> None:
    values = worker(tmp_path, "requeue term 5") | {"restart": {"max_no_progress": 2}}
    for restart in range(3):
        run_script(values, restart=restart)
    event = last_event(tmp_path, "7.2")
    assert (event["event"], event["cause"]) == ("failed", "gave-up")
    assert event["reason"] == "2 attempt(s) in a row without a new checkpoint"


@pytest.mark.parametrize("where", ["run/checkpoints", "else where"])
def test_attempt_without_its_saved_file_counts_as_saved_if_its_checkpoint_exists(
    run_script: RunScript, tmp_path: Path, where: str
) -> None:
    values = worker(tmp_path, "requeue term 5") | {"restart": {"max_no_progress": 2}}
    values["checkpoint"] = {"url": str(tmp_path / where)} if "else" in where else {}
    for restart in range(2):
        run_script(values, restart=restart)
    one = manifest(step=1000)
    write(tmp_path / where, replace(one, info=replace(one.info, attempt="7.1")))
    assert run_script(values, restart=2).returncode == 0
    assert (tmp_path / "run/attempts/7.1/saved").read_text() == "1000\n"
    assert not (tmp_path / "run/attempts/7.0/saved").exists()


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), ("not-executable", 126)])
def test_program_not_found_or_not_executable_is_requeued_only_once(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, program: str, code: int
) -> None:
    """On another node it may be there; on the second one as well it is a mistake."""
    (stubs.folder / "not-executable").write_text("text")
    values = {"command": [f"{stubs.folder}/{program}"], "restart": {"max_crashes": 5}}
    assert [run_script(values, restart=restart).returncode for restart in range(2)] == [0, code]
    assert requeues(stubs) == ["requeue 7"]
    assert "was not found or cannot be executed" in last_event(tmp_path, "7.1")["reason"]


def test_program_found_between_two_failed_starts_is_requeued_again(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    for restart, code in enumerate([127, 75, 127]):
        run_script({"command": ["bash", "-c", f"exit {code}"]}, restart=restart)
    assert requeues(stubs) == ["requeue 7"] * 3


def asks_at_once(tmp_path: Path) -> dict[str, object]:
    """A program that asks to be requeued, in an instant."""
    return {"command": ["bash", "-c", "exit 75"], "restart": {"max_no_progress": 3}}


def test_requeue_requested_within_a_minute_is_granted_only_up_to_the_limit(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    codes = [run_script(asks_at_once(tmp_path), restart=restart).returncode for restart in range(3)]
    assert codes == [0, 0, 1]
    assert requeues(stubs) == ["requeue 7"] * 2
    event = last_event(tmp_path, "7.2")
    assert event["cause"] == cause(tmp_path, "7.2") == "gave-up"
    assert event["reason"] == "3 attempt(s) in a row that asked to be requeued (exit 75) within a minute"


def test_requeue_requested_after_long_work_is_always_granted(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    for restart in range(5):
        assert run_script(asks_at_once(tmp_path), restart=restart).returncode == 0
        (tmp_path / f"run/attempts/7.{restart}/exit").write_text("75 3600\n")
    assert len(requeues(stubs)) == 5
