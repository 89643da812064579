"""States and exit codes in Slurm's words."""

import pytest

from clusterdp.slurm.state import JobState, accounted_exit_word, exit_word


@pytest.mark.parametrize("state", JobState)
def test_every_state_is_read_back_from_its_long_and_its_short_word(state: JobState) -> None:
    assert JobState.parse(state.value) is state
    assert JobState.parse(state.short.lower()) is state


@pytest.mark.parametrize("text", ["CANCELLED by 1000", "CANCELLED+", "cancelle+", "CA"])
def test_sacct_s_ways_to_say_cancelled_are_understood(text: str) -> None:
    assert JobState.parse(text) is JobState.CANCELLED


@pytest.mark.parametrize("text", ["", "NOSUCH", "RE", "by 1000"])
def test_what_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Slurm job state"):
        JobState.parse(text)


def test_a_job_that_winds_up_or_waits_is_not_over() -> None:
    assert not any(JobState[name].final for name in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SPECIAL_EXIT"))
    assert all(JobState[name].final for name in ("COMPLETED", "FAILED", "TIMEOUT", "PREEMPTED", "NODE_FAIL"))


def test_sacct_loses_the_highest_bit_of_an_exit_code_and_scontrol_does_not() -> None:
    assert exit_word(137 << 8) == "137:0"
    assert accounted_exit_word(137 << 8) == "9:0"
    assert exit_word(9) == accounted_exit_word(9) == "0:9"
