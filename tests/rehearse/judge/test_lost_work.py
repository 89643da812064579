"""LostWork: saved steps that are done again, told from the saves before the fault and the steps after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterdp.rehearse.judge.failed_drill import FailedDrill
from clusterdp.rehearse.judge.lost_work import lost_work
from clusterdp.rehearse.observe.file_use import FileUse
from clusterdp.rehearse.run_spec import Hit, committed
from tests.rehearse.judge.test_diagnosis import HIT, case, printed

# Saves of one file at steps 5, 10 and 15 of an undisturbed run.
USUAL = {"a.pt": FileUse(written=[1.0, 2.0, 3.0], steps=[5, 10, 15])}


def case_of(folder: Path, use: FileUse, began: int, file: str = "") -> FailedDrill:
    """A run that was killed after step 17, and began again at this step."""
    printed(folder, "7.0", *range(1, 18))
    printed(folder, "7.1", *range(began, 25))
    hit = Hit("7.0", "killed", 17, HIT, ("preempted",), file=file)
    return case(folder, hit, files={"a.pt": use}, undisturbed=USUAL)


@pytest.mark.parametrize(("began", "steps"), [(16, None), (13, None), (11, 5), (6, 10), (1, 15)])
def test_lost_work_shorter_than_one_save_interval_is_not_reported(
    tmp_path: Path, began: int, steps: int | None
) -> None:
    use = FileUse(written=[103.0, 106.0, 109.0], steps=[5, 10, 15])
    found = lost_work(case_of(tmp_path, use, began))
    assert (found.steps if found else None) == steps


def test_torn_save_itself_does_not_count_as_lost_work(tmp_path: Path) -> None:
    use = FileUse(written=[103.0, 106.0, HIT + 0.1], steps=[5, 10, 15])
    assert lost_work(case_of(tmp_path, use, 11, "a.pt")) is None
    found = lost_work(case_of(tmp_path / "all", use, 1, "a.pt"))
    assert found and found.words == (
        "step 10 was saved to a.pt before the fault, and attempt 2 began at step 1: "
        "10 saved steps done again, all that was saved"
    )


@pytest.mark.parametrize(("since", "saved"), [(HIT - 0.2, 10), (HIT - 0.09, 10), (None, 15)])
def test_lost_work_counts_only_saves_finished_before_the_fault(tmp_path: Path, since: float | None, saved: int) -> None:
    given = case_of(tmp_path, FileUse(written=[103.0, 106.0, HIT - 0.1], steps=[5, 10, 15]), 1)
    struck = replace(given.result.hits[0], since=since, moment="after a.pt was deleted")
    files = committed(given.result.files, [struck], ())
    found = lost_work(replace(given, result=replace(given.result, hits=(struck,), files=files)))
    assert found and found.saved == saved
    assert found.words.startswith(f"step {saved} was saved to a.pt before it was killed after a.pt was deleted, and")


@pytest.mark.parametrize(("pointed", "steps"), [((103.5, 106.5, 109.5), 15), ((103.5, 106.5), 10), ((1.0,), None)])
def test_lost_work_counts_only_saves_named_by_the_latest_pointer(
    tmp_path: Path, pointed: tuple[float, ...], steps: int | None
) -> None:
    given = case_of(tmp_path, FileUse(written=[103.0, 106.0, 109.0], steps=[5, 10, 15]), 1)
    files = committed(given.result.files, given.result.hits, pointed)
    found = lost_work(replace(given, result=replace(given.result, files=files)))
    assert (found.steps if found else None) == steps


def test_deletion_of_the_only_checkpoint_before_the_fault_is_lost_work(tmp_path: Path) -> None:
    use = FileUse(written=[106.0], gone=[109.9], steps=[10])
    files = {"a.pt": use, "a.pt.tmp": FileUse(written=[HIT], steps=[15])}
    given = case_of(tmp_path, use, 1, "a.pt.tmp")
    found = lost_work(replace(given, result=replace(given.result, files=files)))
    assert found and (found.saved, found.steps) == (10, 10)


def test_repeated_steps_are_not_lost_work_without_an_earlier_save(tmp_path: Path) -> None:
    assert lost_work(case_of(tmp_path, FileUse(written=[HIT + 20], steps=[5]), 1)) is None
