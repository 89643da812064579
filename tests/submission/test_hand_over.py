"""From the script to the batch program: which interpreter, what the ranks find in their environment, what is left in
shell, and what a fault of the program costs."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp.submission.snapshot.batch_copy import PROGRAM
from tests.submission.conftest import RunScript, Stubs, cause, last_event, ledger, requeues
from tests.submission.test_script import ARRAYS, CASES, rendered

CRASHES = {"command": ["bash", "-c", "exit 3"], "restart": {"max_crashes": 1}}
DONE = {"command": ["true"]}

SHELL = [PROGRAM / name for name in ("setup.bash", "interface.bash", "environment.bash")]

# Each decision that is left in shell, with its reason.
DECISIONS = {
    "until [ -e .whole ]": "two pretend nodes may share /tmp, and only one unpacks the environment",
    "for candidate in": "no Python is known to run before one has been tried",
    'if [ ! -x "$supervisor" ]': "none was found",
    "elif [ ! -r": "the program is gone, and Python would exit with 1",
    'if [ -z "${GLOO_SOCKET_IFNAME-}" ]': "in each task, on each node, maybe in a container without Python",
    "case $address in": "the same",
    "case ${address:=$MASTER_ADDR} in": "the same",
    "127.*) case $OSTYPE in": "the same",
    "case $name$route in": "the same",
    "while read -r device": "the same",
    "case $-:$4 in": "setup runs in this shell, and so does the trap that reads its errors",
    "case $1:$2 in": "the same",
    "case $'\\n'$CLUSTERDP_SETUP_ERRORS in": "the same",
    "for name in": "only this shell has the variables as they were before setup",
    "for module in": "only a shell has the function that loads one",
    "while IFS= read -r -d": "the words of an element of a sweep, which no shell may read",
}


@pytest.mark.parametrize("case", CASES)
def test_batch_script_is_short_and_each_shell_decision_has_a_listed_reason(case: str) -> None:
    text = rendered(CASES[case], ARRAYS.get(case))
    values = CASES[case]
    by_user = [line for line in text.splitlines() if "--container" in line or "apptainer" in line]
    lines = [line for line in text.splitlines() if line not in by_user]
    has_setup = isinstance(values.get("launch"), dict) and "setup" in str(values["launch"])
    assert len(lines) <= 100 + 20 * ("torchrun" in text) + 10 * has_setup
    assert max(map(len, lines)) <= 120
    for line in [*lines, *(line for path in SHELL for line in path.read_text().splitlines())]:
        if re.match(r"\s*(if|elif|for|while|until|case|127\.\*\) case) ", line) and not line.startswith("#"):
            assert any(known in line for known in DECISIONS), line


def test_every_listed_shell_decision_occurs_in_a_rendered_script() -> None:
    texts = "".join(rendered(CASES[case], ARRAYS.get(case)) for case in CASES) + "".join(
        path.read_text() for path in SHELL
    )
    assert not [known for known in DECISIONS if known not in texts]


def environ_of_step(run_script: RunScript, tmp_path: Path, **more: str) -> tuple[set[bytes], set[bytes]]:
    """What the program of the step finds, and what it finds where the script itself starts the step."""
    launch: dict[str, object] = {
        "setup": "module() { echo $'two\\nlines'; }\nexport -f module\nexport BYTES=$'\\xff\\xe9'"
    }
    values = {"command": ["bash", "-c", "cat /proc/self/environ >$HOME/seen"], "launch": launch}
    run_script(values, **more)
    ours = (tmp_path / "seen").read_bytes()
    script = tmp_path / "run/job.sbatch"
    text, found = re.subn(
        r"(?ms)^exec .{,2}supervisor.*", 'unset "${!CLUSTERDP_SETUP_@}"\nexec "${step[@]}"\n', script.read_text()
    )
    assert found == 1
    script.write_text(text)
    environ = {"PATH": f"{tmp_path}/stubs:{os.environ['PATH']}", "STUBS": f"{tmp_path}/stubs", "HOME": str(tmp_path)}
    environ |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_PARTITION": "main", **more}
    subprocess.run(["bash", script], env=environ, check=True, stdin=subprocess.DEVNULL, cwd=tmp_path)
    return set(ours.split(b"\0")), set((tmp_path / "seen").read_bytes().split(b"\0"))


@pytest.mark.parametrize("locale", [{}, {"LANG": "C"}, {"LANG": "C.UTF-8", "LC_CTYPE": "C"}, {"LC_ALL": "POSIX"}])
def test_step_has_the_environment_of_the_script_byte_for_byte(
    run_script: RunScript, tmp_path: Path, locale: dict[str, str]
) -> None:
    ours, theirs = environ_of_step(run_script, tmp_path, CONDA_SHLVL="1", **locale)
    assert b"BYTES=\xff\xe9" in ours
    assert any(entry.startswith(b"BASH_FUNC_module") for entry in ours)
    named = (b"MASTER_", b"CLUSTERDP_", b"GLOO_SOCKET_IFNAME=", b"_=")
    assert {entry for entry in ours ^ theirs if not entry.startswith(named)} == set()


def test_variables_for_the_batch_program_reach_no_rank(run_script: RunScript, tmp_path: Path) -> None:
    values = {"command": ["bash", "-c", "env >$HOME/seen"], "launch": {"setup": "false"}}
    run_script(values, CLUSTERDP_CHAIN="7", CLUSTERDP_REPLACES="6:6")
    assert not re.search("CLUSTERDP_(CHAIN|REPLACES|UNWRITTEN|SETUP|BEGAN)", (tmp_path / "seen").read_text())


def test_step_has_dev_null_as_standard_input(run_script: RunScript, tmp_path: Path) -> None:
    run_script({"command": ["bash", "-c", "cat >$HOME/seen; readlink /proc/self/fd/0 >>$HOME/seen"]})
    assert (tmp_path / "seen").read_text() == "/dev/null\n"


def test_logs_placeholder_is_replaced_only_in_the_options_of_srun(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    run_script({"command": ["bash", "-c", 'echo "$1" >$HOME/seen', "x", "--output={logs}"]})
    assert (tmp_path / "seen").read_text() == "--output={logs}\n"
    assert f"--output={tmp_path}/run/attempts/7.0/logs/node-%5n.log" in (stubs.folder / "srun.args").read_text()


@pytest.mark.parametrize(
    ("got", "sizes"),
    [
        ({}, "--nodes=1 --ntasks=2 --ntasks-per-node=2 --cpus-per-task=3"),
        (  # Slurm gives more for MaxMemPerCPU
            {"SLURM_CPUS_PER_TASK": "9", "SLURM_CPUS_ON_NODE": "18"},
            "--nodes=1 --ntasks=2 --ntasks-per-node=2 --cpus-per-task=9",
        ),
        (  # or rounds up for each task, and not for the node (22.05)
            {"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "7"},
            "--nodes=1 --ntasks=2 --ntasks-per-node=2 --cpus-per-task=3",
        ),
        ({"SLURM_JOB_NUM_NODES": "4"}, "--nodes=4 --ntasks=8 --ntasks-per-node=2 --cpus-per-task=3"),
    ],
)
def test_ranks_get_the_sizes_of_the_allocation(
    run_script: RunScript, stubs: Stubs, got: dict[str, str], sizes: str
) -> None:
    run_script({**DONE, "resources": {"tasks_per_node": 2, "cpus_per_task": 3}}, **got)
    assert any(line.startswith(sizes) for line in (stubs.folder / "srun.args").read_text().splitlines())


def python(tmp_path: Path, text: str) -> str:
    path = tmp_path / "host-python"
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "text",
    ["exit 1", "echo /nope", "kill -9 $$", f'PATH=/nope PYENV_SHIM=1 {sys.executable} "$@"'],
    ids=["fails", "names nothing", "dies", "shim"],
)
def test_broken_host_python_is_skipped_and_a_shim_is_resolved(run_script: RunScript, tmp_path: Path, text: str) -> None:
    values = {"command": ["bash", "-c", "env >$HOME/seen"], "launch": {"host_python": python(tmp_path, text)}}
    done = run_script(values)
    assert (done.returncode, cause(tmp_path)) == (0, "done"), done.stderr
    assert "PYENV" not in (tmp_path / "seen").read_text()


def test_script_without_a_usable_python_fails_naming_host_python(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    run_script(DONE)
    script = tmp_path / "run/job.sbatch"
    script.write_text(re.sub(r"(for candidate in) .*; do", r"\1 /nope python3.5; do", script.read_text()))
    done = subprocess.run(["bash", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.startswith("clusterdp: no Python 3.6 or later on ")
    assert done.stderr.endswith("Set launch.host_python.\n") and done.stderr.count("\n") == 1


def test_batch_program_refuses_to_run_if_it_is_not_the_batch_process(tmp_path: Path) -> None:
    """Slurm's TERM would reach a wrapper in its place."""
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    words = [sys.executable, "-I", "-S", "-B", str(copied(tmp_path)), "run", str(tmp_path), "--pid=1", "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, env=environ)
    assert done.returncode == 4
    assert "launch.host_python" in done.stderr


def copied(tmp_path: Path) -> Path:
    from clusterdp.submission.snapshot.batch_copy import write_batch

    write_batch(tmp_path / "batch", {})
    return tmp_path / "batch"


def test_missing_batch_program_exits_4_with_one_line(run_script: RunScript, tmp_path: Path) -> None:
    run_script(DONE)
    shutil.rmtree(tmp_path / "run/batch/batch")
    environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "8", "SLURM_JOB_NODELIST": "n1"}
    for said in ("clusterdp resume", "has no batch/"):
        done = subprocess.run(["bash", tmp_path / "run/job.sbatch"], capture_output=True, text=True, env=environ)
        assert (done.returncode, done.stderr.count("\n")) == (4, 1), done.stderr
        assert said in done.stderr
        shutil.rmtree(tmp_path / "run/batch", ignore_errors=True)


def test_batch_program_still_decides_if_its_files_are_deleted_during_the_step(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.on("sleep", 'case $1 in 10 | 60) exec /bin/sleep "$1" ;; esac')
    values = {
        "command": [
            "bash",
            "-c",
            "rm -r $CLUSTERDP_RUN_DIR/batch; echo ValueError: x >$CLUSTERDP_LOGS/rank-00000.out; exit 3",
        ],
        "restart": {"hang_after_s": 600},
        "notify": {"command": ["bash", "-c", "cat >>$STUBS/told"], "on": ["requeue", "hang"]},
    }
    done = run_script(values)
    assert (done.returncode, cause(tmp_path), requeues(stubs)) == (0, "start", ["requeue 7"]), done.stderr
    assert "it is requeued" in (stubs.folder / "told").read_text()


def test_exit_trap_of_setup_runs_at_the_end_of_the_script(run_script: RunScript, tmp_path: Path) -> None:
    setup = "clean() { sleep 0; echo $mine >>$HOME/seen; }\nmine='two words'\ntrap clean EXIT"
    values = {"command": ["bash", "-c", "echo ran >>$HOME/seen; exit 3"], "launch": {"setup": setup}}
    assert run_script({**values, "restart": {"max_crashes": 0}}).returncode == 3
    assert (tmp_path / "seen").read_text() == "ran\ntwo words\n"


def test_term_to_all_processes_interrupts_no_scontrol_command(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    lines = '[ -e "$STUBS/$1" ] || { touch "$STUBS/$1"; kill -TERM $$ $PPID; kill -TERM $$ $PPID; }'
    stubs.on("scontrol", f'{lines}; echo "$1" >>"$STUBS/lived"')
    assert run_script({"command": ["bash", "-c", "exit 143"]}).returncode == 0
    assert (stubs.folder / "lived").read_text().split() == [call.split()[0] for call in stubs.calls("scontrol")]
    assert (cause(tmp_path), requeues(stubs)) == ("preempted", ["requeue 7"])


@pytest.mark.parametrize("name", ["HUP", "INT", "USR1", "USR2"])
def test_stray_signal_does_not_end_the_batch_program_or_the_step(
    run_script: RunScript, tmp_path: Path, name: str
) -> None:
    values = {"command": ["bash", "-c", f"kill -{name} $PPID; /bin/sleep 0.2; touch $HOME/ran"]}
    assert run_script(values).returncode == 0
    assert (cause(tmp_path), (tmp_path / "ran").exists()) == ("done", True)


SETUPS = {
    "-e -u -f -C": "set -e -u -f -C",
    "posix": "set -o posix",
    "IFS": "IFS=:/7",
    "shopt": "shopt -s nullglob failglob dotglob extglob nocasematch expand_aliases",
    "aliases": "shopt -s expand_aliases; alias exec=false set=false export=false echo=false read=false exit=true",
    "functions": "scontrol() { :; }; sleep() { :; }; srun() { :; }; python3() { :; }; date() { :; }; export -f srun",
    "TZ and locale": "export TZ=Asia/Tokyo LC_ALL=C LANG=x POSIXLY_CORRECT=1",
    "Slurm's own": "export SLURM_TIME_FORMAT=%a SQUEUE_FORMAT=%i SQUEUE_STATES=R SINFO_FORMAT=%n",
    "TERM": "trap '' TERM",
    "variables": "run_dir=/nope python=/nope step=/nope supervisor=/nope candidate=/nope awake=x posix= program=x",
    "Python's": "export PYTHONHOME=/nope PYTHONPATH=/nope PYTHONSTARTUP=/nope PYTHONINSPECT=1",
}


@pytest.mark.parametrize("setup", SETUPS)
def test_setup_code_changes_no_restart_decision(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, setup: str
) -> None:
    values = {**CRASHES, "launch": {"setup": SETUPS[setup]}}
    codes = [run_script(values, restart=restart).returncode for restart in range(3)]
    assert (codes, requeues(stubs)) == ([0, 3, 1], ["requeue 7"])
    assert [cause(tmp_path, f"7.{n}") for n in range(3)] == ["start", "start", "start"]
    assert last_event(tmp_path, "7.1") | {"time": 0} == {
        "time": 0, "event": "failed", "attempt": "7.1", "cause": "start", "exit": 3,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["BASH_ENV", "POSIXLY_CORRECT", "SHELLOPTS"])
def test_submitters_shell_environment_changes_no_restart_decision(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, name: str
) -> None:
    only = "case $0 in *job.sbatch) set -f; IFS=:; alias exec=false; scontrol() { echo no; } ;; esac\n"
    (tmp_path / "env.sh").write_text(only)
    values = {"BASH_ENV": str(tmp_path / "env.sh"), "POSIXLY_CORRECT": "1", "SHELLOPTS": "errexit:noglob:nounset:posix"}
    codes = [run_script(CRASHES, restart=restart, **{name: values[name]}).returncode for restart in range(2)]
    assert (codes, requeues(stubs)) == ([0, 3], ["requeue 7"])


def test_banner_printed_by_slurm_commands_changes_no_restart_decision(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    for name in ("scontrol", "squeue", "sinfo", "sbatch"):
        path = stubs.folder / name
        path.write_text(path.read_text().replace("#!/bin/bash\n", "#!/bin/bash\necho 'Welcome to the cluster!'\n"))
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    assert run_script({**DONE, "restart": {"how": "resubmit"}}).returncode == 0
    assert (cause(tmp_path), ("submitted", None) in ledger(tmp_path)) == ("preempted", True)


def test_batch_program_exception_before_the_step_exits_4(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    break_program(run_script, tmp_path, "decide/policy.py", "history.ended[-1]", "history.broken")
    done = run_script(DONE, restart=1)
    assert done.returncode == 4
    assert "a fault in the batch program" in done.stderr
    assert requeues(stubs) == ["requeue 7"], "that was the attempt before"


def test_batch_program_exception_after_the_step_ends_the_attempt_with_exit_75(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    break_program(run_script, tmp_path, "decide/evidence.py", 'return Fault("start"', 'return Faul("start"')
    done = run_script(CRASHES, job=8)
    assert (done.returncode, cause(tmp_path, "8.0")) == (75, "unknown"), done.stderr
    assert "a fault in the batch program: NameError" in last_event(tmp_path, "8.0")["reason"]
    assert "clusterdp resume" in done.stderr


def break_program(run_script: RunScript, tmp_path: Path, file: str, old: str, new: str) -> None:
    run_script({"command": ["bash", "-c", "exit 75"]})
    path = tmp_path / "run/batch/batch" / file
    text = path.read_text()
    assert old in text
    path.unlink()
    path.write_text(text.replace(old, new))


OLDEST = (3, 6)


@pytest.mark.parametrize("path", sorted(PROGRAM.glob("*.py")), ids=lambda path: path.name)
def test_each_batch_program_module_parses_as_python_3_6(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=OLDEST)


def oldest_python() -> str:
    """Of those at hand, from 3.6 on."""
    home = Path.home() / ".pyenv/versions"
    named = [shutil.which(f"python3.{minor}") for minor in range(6, sys.version_info.minor)]
    found = ["/usr/libexec/platform-python", *sorted(map(str, home.glob("3.[6-9].*/bin/python"))), *filter(None, named)]
    ask = "import sys; sys.version_info < (3, 6) or print(sys.executable)"
    for each in found:
        if os.access(each, os.X_OK):
            said = subprocess.run([each, "-I", "-S", "-c", ask], capture_output=True, text=True).stdout.strip()
            if said:
                return said
    return sys.executable


def test_batch_program_handles_non_ascii_names_and_bytes_on_the_oldest_python(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_bytes(
        b"printf 'ValueError: \xff \xc3\xa9 x\\n' >$CLUSTERDP_LOGS/rank-00000.out\n"
        b'printf %s "$1" >$HOME/seen; exit 3\n'
    )
    values = {
        "name": "é",
        "command": ["bash", str(program), "é"],
        "launch": {"host_python": oldest_python()},
        "restart": {"max_crashes": 0},
        "notify": {"command": ["bash", "-c", "cat >>$STUBS/told"], "on": ["failure"]},
    }
    stubs.on("sleep", '[ "$1" != 10 ] || exec /bin/sleep 10')
    run_script(values)
    odd = tmp_path / "é"
    odd.mkdir()
    shutil.move(tmp_path / "run", odd / "run")
    script = odd / "run/job.sbatch"
    script.write_text(script.read_text().replace(f"{tmp_path}/run", f"{odd}/run"))
    (stubs.folder / "told").unlink()
    environ = {"PATH": f"{stubs.folder}:{os.environ['PATH']}", "STUBS": str(stubs.folder), "HOME": str(tmp_path)}
    environ |= {"SLURM_JOB_ID": "8", "SLURM_JOB_NODELIST": "n1", "LANG": "C"}
    done = subprocess.run(["bash", script], env=environ, capture_output=True)
    assert done.returncode == 3, done.stderr
    assert (odd / "run/attempts/8.0/cause").read_text() == "start\n"
    event = json.loads((odd / "run/events/8.0-batch.jsonl").read_text().splitlines()[-2])
    assert event["error"] == "ValueError: � é x"
    assert (tmp_path / "seen").read_text() == "é"
    assert "é (job 8): failed: crashed at its start (exit 3): ValueError:" in (stubs.folder / "told").read_text(
        errors="replace"
    )
