"""The files of srun --multi-prog."""

import pytest

from clusterdp.fakeslurm.slurmctld.multi_prog import BadFile, read, words

from .conftest import Desk


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("echo one two", ["echo", "one", "two"]),
        ("echo 'one two'three", ["echo", "one twothree"]),
        (r"echo a\ b \'", ["echo", "a b", "'"]),
        ("echo %t-%o '%t' %% %n", ["echo", "5-2", "%t", "%%", "%n"]),
        ('echo "two words" $HOME', ["echo", '"two', 'words"', "$HOME"]),
        ("", []),
    ],
)
def test_multi_prog_words_are_split_like_srun_does(text: str, expected: list[str]) -> None:
    assert words(text, 5, 2) == expected


def test_each_task_gets_its_line_of_the_multi_prog_file() -> None:
    programs = read("# who  what\n\n0,3 \t head %o\n1-2 middle %o\n* rest %o", "conf", 6)
    assert [" ".join(program) for program in programs] == [
        "head 0",
        "middle 0",
        "middle 1",
        "head 1",
        "rest 4",
        "rest 5",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 a", "Configuration file conf invalid, no record for task id 1"),
        ("0-1 a\n1 b", "Duplicate record for task 1\nLine 2 of configuration file conf invalid"),
        ("0-2 a", "Invalid task id, 2 >= ntasks\nLine 1 of configuration file conf invalid"),
        ("one a", "Invalid task range specification (one)\nLine 1 of configuration file conf invalid"),
    ],
)
def test_multi_prog_file_mistakes_are_reported_in_sruns_words(text: str, said: str) -> None:
    with pytest.raises(BadFile) as mistake:
        read(text, "conf", 2)
    assert str(mistake.value) == said


def test_worst_task_decides_the_step_state_and_sruns_exit_code(shared_desk: Desk) -> None:
    assert states_of_two_programs(shared_desk, "FAILED\nFAILED") == 1


def test_last_task_decides_the_step_state_on_slurm_22_05(desk_22_05: Desk) -> None:
    assert states_of_two_programs(desk_22_05, "FAILED\nCOMPLETED") == 1


def states_of_two_programs(desk: Desk, states: str) -> int:
    """The first fails. What srun returns, once sacct has these states of the job and the step."""
    (desk.folder / "conf").write_text("0 false\n1 true\n")
    done = desk.run("srun", "--ntasks=2", "--job-name=last", "--multi-prog", "conf")
    desk.until(lambda: desk.say("sacct -n -P --name last -o State") == states)
    return done.returncode
