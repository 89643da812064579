"""What the commands take, and what they refuse: never silently ignored."""

import pytest

from clusterdp.fakeslurm import FakeCluster, FakeSlurmError
from clusterdp.fakeslurm.commands.run.sbatch import directive_words
from clusterdp.fakeslurm.core.times import BadTime, minutes
from clusterdp.fakeslurm.slurmstepd.output_files import expand

from .conftest import Desk


@pytest.mark.parametrize(
    "words",
    [
        ["sbatch", "--nosuch", "--wrap=true"],
        ["sbatch", "--container=x", "--wrap=true"],
        ["sbatch", "--deadline=2020-01-01", "--wrap=true"],
        ["sbatch", "--time=soon", "--wrap=true"],
        ["srun", "--multi-prog", "conf"],
        ["squeue", "--nosuch"],
        ["scancel"],
        ["scontrol", "nosuch"],
        ["scontrol", "reboot", "n1"],
        ["sacct", "--format=nosuch"],
        ["sinfo", "-t", "nosuch"],
    ],
    ids=" ".join,
)
def test_invalid_or_unsupported_arguments_are_refused_with_an_error_message(
    shared_desk: Desk, words: list[str]
) -> None:
    done = shared_desk.run(*words)
    assert done.returncode != 0
    assert done.stderr.strip()
    assert not done.stdout


def test_deadline_cuts_the_time_limit_and_ends_pending_jobs(desk: Desk) -> None:
    runs = desk.submit("--deadline=now+290seconds", script="sleep 1000")
    waits = desk.submit("--deadline=now+290seconds", f"--dependency=afterany:{runs}", "--time=2", script="true")
    other = desk.submit("--deadline=now+1hour", script="true")
    desk.until(lambda: desk.field(runs, "JobState") == "RUNNING")
    assert desk.field(runs, "TimeLimit") == "00:04:00"
    desk.cluster.advance(245)
    for job, end in ((waits, "DEADLINE"), (runs, "TIMEOUT"), (other, "COMPLETED")):
        desk.until(lambda job=job, end=end: desk.field(job, "JobState") == end)


def test_sbatch_export_file_sets_environment_variables(shared_desk: Desk) -> None:
    (shared_desk.folder / "vars").write_text("ONE=1\0TWO=a b\0")
    job = shared_desk.submit("--export-file=vars", script='echo "$ONE $TWO"')
    shared_desk.cluster.wait(job)
    assert shared_desk.output(job) == "1 a b\n"


def test_unknown_sbatch_option_is_refused_with_slurms_message(shared_desk: Desk) -> None:
    done = shared_desk.run("sbatch", "--bogus", "--wrap=true")
    assert done.returncode == 255
    assert done.stderr == "sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information\n"


def test_refused_submission_adds_no_job_to_squeue(shared_desk: Desk) -> None:
    before = shared_desk.say("squeue -h -t all -o %A")
    assert shared_desk.run("sbatch", "-p", "nosuch", "--wrap=true").returncode == 1
    assert shared_desk.say("squeue -h -t all -o %A") == before


def test_sbatch_keeps_the_submitted_script_if_its_file_changes(shared_desk: Desk) -> None:
    path = shared_desk.folder / "job.sh"
    path.write_text("#!/bin/bash\necho first\n")
    job = shared_desk.say("sbatch --parsable --hold --output=out job.sh")
    path.write_text("#!/bin/bash\necho second\n")
    shared_desk.say(f"scontrol release {job}")
    shared_desk.cluster.wait(job)
    assert (shared_desk.folder / "out").read_text() == "first\n"


def test_sbatch_reads_a_script_and_its_directives_from_stdin(shared_desk: Desk) -> None:
    done = shared_desk.run("sbatch", "--parsable", stdin="#!/bin/bash\n#SBATCH --output=from-stdin\necho hello\n")
    shared_desk.cluster.wait(done.stdout.strip())
    assert (shared_desk.folder / "from-stdin").read_text() == "hello\n"


@pytest.mark.parametrize("name", ["it's", 'a "b"', "$(touch hacked)", "new\nline", "-x", "sp ace"])
def test_special_characters_in_script_arguments_reach_the_tasks_unchanged(shared_desk: Desk, name: str) -> None:
    script = shared_desk.folder / "named.sh"
    script.write_text("#!/bin/bash\nprintf '%s|' \"$1\" > got; srun printf '%s' \"$1\" >> got\n")
    done = shared_desk.run("sbatch", "--parsable", "--output=/dev/null", str(script), name)
    shared_desk.cluster.wait(done.stdout.strip())
    assert (shared_desk.folder / "got").read_text() == f"{name}|{name}"
    assert not (shared_desk.folder / "hacked").exists()


def test_sbatch_prefers_command_line_over_environment_over_script_directives(shared_desk: Desk) -> None:
    path = shared_desk.folder / "job.sh"
    path.write_text("#!/bin/bash\n#SBATCH --time=3 --job-name=script --comment=script\ntrue\n")
    environ = {"SBATCH_TIMELIMIT": "8", "SBATCH_JOB_NAME": "environ"}
    done = shared_desk.run("sbatch", "--parsable", "--hold", "--time=7", str(path), **environ)
    job = done.stdout.strip()
    fields = [shared_desk.field(job, name) for name in ("TimeLimit", "JobName", "Comment")]
    assert fields == ["00:07:00", "environ", "script"]


def test_commands_find_their_cluster_without_slurm_environment_variables(shared_desk: Desk) -> None:
    variables = {name: value for name, value in shared_desk.cluster.environ().items() if not name.startswith("SLURM")}
    import subprocess

    done = subprocess.run(["sinfo", "-h", "-o", "%P"], env=variables, capture_output=True, text=True)
    assert done.stdout.split() == ["main*", "low", "short"]


def test_cluster_preempt_of_a_missing_job_is_an_error(shared_cluster: FakeCluster) -> None:
    with pytest.raises(FakeSlurmError, match="no such job is running"):
        shared_cluster.preempt(99)


def test_cluster_fail_of_an_unknown_node_names_the_existing_nodes(shared_cluster: FakeCluster) -> None:
    with pytest.raises(FakeSlurmError, match=r"n\[1-4\]"):
        shared_cluster.fail("n9")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", 5), ("0:05", 1), ("1:30", 2), ("1:00:00", 60), ("1-0", 1440), ("1-2:03:04", 1564), ("UNLIMITED", 0)],
)
def test_time_limits_are_rounded_up_to_whole_minutes(text: str, expected: int) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize("text", ["5m", "1.5", "1:2:3:4", "soon", ""])
def test_invalid_time_limit_is_refused(text: str) -> None:
    with pytest.raises(BadTime):
        minutes(text)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (" --time=3 -N2", ["--time=3", "-N2"]),
        (' --comment="two words"', ["--comment=two words"]),
        (" --comment='a # b' # remark", ["--comment=a # b"]),
        (" --time=4#four", ["--time=4"]),
        # as a real sbatch (22.05) reads them: tests/e2e/test_directives.py
        (r" --comment=a\b $HOME", ["--comment=ab", "$HOME"]),
        (r" --comment=a\\b\#c", [r"--comment=a\b#c"]),
        (r' --comment="a\"b\\c"', [r'--comment=a"b\c']),
        (r" --comment=two\ words", ["--comment=two", "words"]),
        (" --time=4 \\", ["--time=4"]),
    ],
)
def test_sbatch_directive_is_split_into_words_like_a_real_sbatch_does(line: str, expected: list[str]) -> None:
    assert directive_words(line) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("%j", "12"), ("%8j", "00000012"), ("%%j", "%j"), (r"\%j", "%j"), ("%y-%x", "%y-name"), ("%2t", "03")],
)
def test_percent_patterns_in_output_file_names_are_expanded(pattern: str, expected: str) -> None:
    assert expand(pattern, {"j": 12, "x": "name", "t": 3}) == expected


IN_USE = """
    --job-name=a.b --comment=x --wckey=x --account=any --qos=any --partition=low --nodelist=n1 --exclude= --exclusive
    --exclusive=user --oversubscribe --switches=1 --nodes=2-4 --ntasks=2 --ntasks-per-node=2 --cpus-per-task=2
    --cpus-per-gpu=1 --mem=1G --mem=1GB --mem=204800K --mem=0 --mem-per-cpu=100 --tmp=1 --gres=gpu:2
    --gpus=1 --gpus-per-node=1 --gpus-per-task=1 --gpu-bind=none --time=0-00:02:00 --time-min=1 --begin=now+1hour
    --output=%8j.out --error=/dev/null --input=/dev/null --open-mode=append --chdir=/ --dependency=singleton
    --kill-on-invalid-dep=yes --hold --nice --nice=5 --priority=9 --requeue --no-requeue --signal=B:USR2@90
    --mail-type=END --mail-user=x --export=ALL --export=NONE --export=A=b,C --get-user-env=L --parsable --array=0-3%2
    --distribution=cyclic --hint=nomultithread --no-kill --contiguous --use-min-nodes --spread-job
""".split()


@pytest.mark.parametrize("option", IN_USE)
def test_sbatch_accepts_every_option_used_by_well_known_clients(shared_desk: Desk, option: str) -> None:
    of_gpus = {"--cpus-per-gpu=1": "--gpus=1", "--gpus-per-task=1": "--ntasks=1"}.get(option, "--parsable")
    done = shared_desk.run("sbatch", "--hold", "--output=/dev/null", of_gpus, option, "--wrap=true")
    assert done.returncode == 0, done.stderr
    shared_desk.say(f"scancel {done.stdout.split()[-1]}")


def test_sstat_lists_running_steps_and_sacctmgr_lists_user_and_qos(shared_desk: Desk) -> None:
    job = shared_desk.submit("--ntasks=2", script="srun bash -c 'touch $SLURM_PROCID.up; sleep 100'")
    shared_desk.until(lambda: len(list(shared_desk.folder.glob("*.up"))) == 2)
    assert shared_desk.say(f"sstat -n -P -a -j {job} -o JobID,NTasks").split() == [f"{job}.batch|1", f"{job}.0|2"]
    assert shared_desk.say(f"sstat -n -P -j {job} -o MaxRSS").rstrip("K").isdigit()
    shared_desk.say(f"scancel {job}")
    shared_desk.cluster.wait(job)
    assert "not found running" in shared_desk.run("sstat", "-j", f"{job}.0").stderr
    user = shared_desk.say("sacctmgr -n -P list user format=user")
    assert shared_desk.say(f"sacctmgr -n -s list user {user} format=account%256") == user
    assert shared_desk.say("sacctmgr -n -P show qos format=name") == "normal"
