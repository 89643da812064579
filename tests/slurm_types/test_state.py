"""States and exit codes in Slurm's words."""

import pytest

from clusterdp.slurm.state import JobState, accounted_exit_word, exit_word


@pytest.mark.parametrize("state", JobState)
def test_job_state_is_parsed_from_its_long_and_short_names(state: JobState) -> None:
    assert JobState.parse(state.value) is state
    assert JobState.parse(state.short.lower()) is state


@pytest.mark.parametrize("text", ["CANCELLED by 1000", "CANCELLED+", "cancelle+", "CA"])
def test_cancelled_state_is_parsed_with_uid_truncated_or_abbreviated(text: str) -> None:
    assert JobState.parse(text) is JobState.CANCELLED


@pytest.mark.parametrize("text", ["", "NOSUCH", "RE", "by 1000"])
def test_unknown_job_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Slurm job state"):
        JobState.parse(text)


def test_completing_and_requeued_job_states_are_not_final_but_preempted_is() -> None:
    assert not any(JobState[name].final for name in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SPECIAL_EXIT"))
    assert all(JobState[name].final for name in ("COMPLETED", "FAILED", "TIMEOUT", "PREEMPTED", "NODE_FAIL"))


def test_accounted_exit_word_writes_exit_code_137_as_9_like_sacct() -> None:
    assert exit_word(137 << 8) == "137:0"
    assert accounted_exit_word(137 << 8) == "9:0"
    assert exit_word(9) == accounted_exit_word(9) == "0:9"
