"""The submission of a sweep: one script, one snapshot, a run folder for each element; what another script would need is
refused, and what sbatch refuses leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import clusterdp
from clusterdp import config
from clusterdp.config.elements import Element
from clusterdp.errors import ClusterdpError, ConfigError, SubmitError, SubmitInDoubt
from clusterdp.rundir import RunDir, SweepDir, read_events
from clusterdp.submission.resume import plan_again
from clusterdp.submission.send import answers
from clusterdp.submission.sweep.arrays import SentSweep
from clusterdp.submission.sweep.plan import make_sweep_plan
from tests.submission.conftest import HOSTILE, Stubs

TRAIN = "def main(job, lr: float = 0.1, seed: int = 0): ...\ndef other(job, lr): ...\n"


@pytest.fixture
def work(tmp_path: Path, stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A submit directory; sbatch and its kin are stand-ins."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{stubs.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("STUBS", str(stubs.folder))
    return folder


def submit(*sweeps: str, **values: Any) -> SentSweep:
    given: dict[str, Any] = {"entry": "train:main", "run_dir": "s", **values}
    return clusterdp.submit_sweep(given, sweeps=sweeps)


def test_sweep_is_submitted_as_one_array_with_a_run_folder_per_element(work: Path, stubs: Stubs) -> None:
    sent = submit("params.lr=0.1,0.01", "params.seed=range(2)", sweep={"parallel": 3})
    path = work / "s"
    assert stubs.calls("sbatch") == [f"--parsable {path}/job.sbatch"]
    assert [job.id for job in sent.jobs] == ["4321_0", "4321_1", "4321_2", "4321_3"]
    assert "#SBATCH --array=0-3%3\n" in (path / "job.sbatch").read_text()
    assert json.loads((path / "sweep.json").read_text())["elements"]["2"] == {"params.lr": 0.01, "params.seed": 0}
    assert (path / "code/train.py").is_file()
    for job in sent.jobs:
        assert os.readlink(job.run.code) == "../code"
        assert job.run.config.stat().st_mode & 0o777 == 0o600
        assert [event["job"] for event in read_events(job.run) if event["event"] == "submitted"] == [job.id]
    own = config.read_resolved(path / "2/config.yaml")
    assert own["params"] == {"lr": 0.01, "seed": 0}
    assert own["sweep"]["grid"] == {}


def test_sweep_element_is_resumed_as_a_run_of_its_own(work: Path, stubs: Stubs) -> None:
    sent = submit("params.lr=0.1,0.01", launch={"container": {"image": "x"}, "python": "python"})
    plan = plan_again(sent.jobs[1].run, None, ["params.seed=4"])
    assert "--array" not in plan.script.text
    assert plan.spec.config.params == {"lr": 0.01, "seed": 4}
    mounts = next(flag for flag in plan.spec.srun_flags() if "mounts" in flag)
    assert mounts == f"--container-mounts={work}/s/1:{work}/s/1,{work}/s/code:{work}/s/code"


def test_each_sweep_element_has_its_own_checkpoint_url(work: Path) -> None:
    sent = submit("params.lr=0.1,0.01", checkpoint={"url": "/data/run/"})
    urls = [config.read_resolved(job.run.config)["checkpoint"]["url"] for job in sent.jobs]
    assert urls == ["/data/run/0", "/data/run/1"]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["resources.nodes=1,2"], "resources.nodes"),
        (["resources.time=10,20"], "resources.time"),
        (["params.lr=1,2", "launch.env.X=a,b"], r"launch\.env\.X"),
        (["restart.crash.limit=1,2"], r"restart\.crash\.limit"),
        (["checkpoint.url=/a,/b"], r"checkpoint\.url"),
        (["name=a,b"], "name"),
    ],
)
def test_sweep_over_a_key_of_the_batch_script_is_refused(work: Path, words: list[str], key: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"sweep: {key} changes the job's script.* Submit runs that differ in it apart"
    ):
        submit(*words)
    assert not Path("s").exists()


def test_swept_param_interpolated_into_a_resource_is_refused(work: Path) -> None:
    with pytest.raises(ConfigError, match=r"sweep: params\.seed=1 changes the job's script, by params, resources"):
        submit("params.seed=0,1", resources={"mem": "${params.seed}G"})


@pytest.mark.parametrize(
    "word", ["snapshot.max_mb=50,60", "local.cpus_per_node=2,4", "run_dir=a,b", "snapshot.link=[a],[b]"]
)
def test_sweep_over_a_key_read_only_by_submit_is_refused(work: Path, word: str) -> None:
    with pytest.raises(ConfigError, match=r"is for the sweep as a whole"):
        submit(word)


@pytest.mark.parametrize("word", ["checkpoint.every_s=5,7", "train.seed=range(2)", "entry=train:main,train:other"])
def test_sweep_over_a_key_read_by_the_worker_is_accepted(work: Path, word: str) -> None:
    assert len(submit(word, "params.lr=0.1").jobs) == 2


def test_swept_value_unfit_for_the_entry_is_refused_with_its_element(work: Path, stubs: Stubs) -> None:
    with pytest.raises(ConfigError, match=r"element 2 \(params\.lr=x\): params\.lr: 'x' is not of type float"):
        submit("params.lr=0.1,0.2,x")
    with pytest.raises(ConfigError, match=r"element 1 \(entry=train:othr\): .*Did you mean train:other\?"):
        submit("entry=train:main,train:othr")
    assert not stubs.calls("sbatch")


def test_swept_param_missing_in_the_command_is_refused(work: Path) -> None:
    with pytest.raises(ConfigError, match=r"params\.lr is nowhere in command:.* Write \$\{params\.lr\} there"):
        submit("params.lr=1,2", entry=None, command="train")


def test_sweep_is_refused_by_submitit_old_templates_and_python_submit(work: Path) -> None:
    with pytest.raises(ConfigError, match=r"backend: submitit has no sweeps"):
        submit("params.lr=1,2", backend="submitit")
    Path("mine.j2").write_text("#!/bin/bash\nrun_dir={{ run_dir }}\n")
    with pytest.raises(ConfigError, match=r"mine\.j2 has no \{\{ element \}\}"):
        submit("params.lr=1,2", launch={"template": "mine.j2"})
    with pytest.raises(ConfigError, match=r"sweep: is several runs.*submit_sweep"):
        clusterdp.submit({"entry": "train:main", "sweep": {"grid": {"params.lr": [1, 2]}}})


def test_sweep_dry_run_prints_elements_and_script_but_writes_no_file(work: Path, stubs: Stubs) -> None:
    (work / "c.yaml").write_text("entry: train:main\nrun_dir: s\nsweep:\n  grid:\n    params.lr: [0.1, 0.01]\n")
    before = sorted(work.rglob("*"))
    words = [sys.executable, "-m", "clusterdp", "submit", "c.yaml", "--sweep", "params.seed=range(2)"]
    done = subprocess.run([*words, "--dry-run"], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[:5] == ["#  lr    seed", "0  0.1   0", "1  0.1   1", "2  0.01  0", "3  0.01  1"]
    assert sorted(work.rglob("*")) == before
    assert not stubs.calls("sbatch")
    assert "#SBATCH --array=0-3\n" in done.stdout
    submit("params.lr=0.1,0.01", "params.seed=range(2)", name="c")
    assert (work / "s/job.sbatch").read_text() == done.stdout


def limited_to(stubs: Stubs, most: int) -> None:
    stubs.on("scontrol", f'[ "$*" != "show config" ] || echo "MaxArraySize            = {most}"')


def refusing_after(stubs: Stubs, accepted: int) -> None:
    lines = 'n=$(wc -l <"$STUBS/sbatch.calls")'
    lines += f"\n[ $n -le {accepted} ] || {{ echo sbatch: error: too many jobs >&2; exit 1; }}\necho $((100 * n)); exit"
    stubs.on("sbatch", lines)


def test_sweep_beyond_max_array_size_is_split_into_several_arrays(work: Path, stubs: Stubs) -> None:
    limited_to(stubs, 25)
    refusing_after(stubs, 9)
    sent = submit("params.seed=range(35)", sweep={"parallel": 4})
    path = work / "s"
    scripts = [f"{path}/job{part}.sbatch" for part in ("", "-10", "-20", "-30")]
    assert [call.split()[-1] for call in stubs.calls("sbatch")] == scripts
    assert [call.split()[1:-1] for call in stubs.calls("sbatch")][1:] == [
        [f"--dependency=afterany:{n}00"] for n in (1, 2, 3)
    ]
    assert [sent.jobs[n].id for n in (9, 10, 34)] == ["100_9", "200_0", "400_4"]
    assert sent.jobs[34].run.path == path / "34"
    text = (path / "job-30.sbatch").read_text()
    assert f"#SBATCH --output={path}/3%1a/slurm-%A_%a.out\n" in text
    assert '/"$((30 + SLURM_ARRAY_TASK_ID))" \\\n' in text
    assert "#SBATCH --array=0-4%4\n" in text


def test_sweep_within_max_array_size_is_one_array(work: Path, stubs: Stubs) -> None:
    limited_to(stubs, 25)
    submit("params.seed=range(25)")
    assert len(stubs.calls("sbatch")) == 1
    limited_to(stubs, 0)
    with pytest.raises(ConfigError, match=r"MaxArraySize is 0 here: no arrays of 2 elements"):
        submit("params.seed=range(2)", run_dir="other")


def test_sweep_refused_by_sbatch_leaves_no_folder(work: Path, stubs: Stubs) -> None:
    refusing_after(stubs, 0)
    with pytest.raises(SubmitError, match="too many jobs"):
        submit("params.seed=range(3)")
    assert not Path("s").exists()


def test_refused_later_array_cancels_the_earlier_arrays_of_its_sweep(work: Path, stubs: Stubs) -> None:
    limited_to(stubs, 10)
    refusing_after(stubs, 2)
    with pytest.raises(
        SubmitError, match=r"elements 20 and on were not submitted: .*too many jobs.*20 before them are canc"
    ):
        submit("params.seed=range(25)")
    assert stubs.calls("scancel") == ["100 200"]
    marked = [number for number in SweepDir(work / "s").numbers() if (work / f"s/{number}/cancelled").exists()]
    assert marked == list(range(20))


def test_refused_later_array_keeps_the_earlier_ones_with_on_refusal_keep(work: Path, stubs: Stubs) -> None:
    limited_to(stubs, 10)
    refusing_after(stubs, 2)
    sent = submit("params.seed=range(25)", sweep={"on_refusal": "keep"})
    assert len(sent.jobs) == 20
    assert sent.refused.startswith("elements 20 and on were not submitted")
    assert not stubs.calls("scancel")


def test_timed_out_sweep_submission_keeps_its_folder_and_names_retry_unsubmitted(
    work: Path, stubs: Stubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "PAUSES_S", (0,))
    stubs.on("sbatch", "echo 'sbatch: error: Socket timed out' >&2; exit 1")
    with pytest.raises(SubmitInDoubt, match=r"--retry unsubmitted"):
        submit("params.seed=range(2)")
    assert (work / "s/1/config.yaml").exists()


@pytest.mark.parametrize("kind", ["command", "script"])
def test_special_characters_in_a_swept_param_reach_its_program_unchanged(
    work: Path, stubs: Stubs, kind: str, tmp_path: Path
) -> None:
    """Under the name of each hostile word there is one element."""
    show = "import json, sys; json.dump(sys.argv[1:], open(sys.argv[1], 'w'))"
    out = str(tmp_path / "out.json")
    if kind == "command":
        program: Any = [sys.executable, "-c", show, out, "${params.word}", "x ${params.word}", ""]
        wanted = [[out, word, f"x {word}", ""] for word in HOSTILE]
    else:
        program = f"{sys.executable} -c \"{show}\" {out} '${{params.word}}'\n"
        wanted = [[out, word] for word in HOSTILE if "'" not in word]
    escaped = [word.replace("${", "\\${") for word in HOSTILE if kind == "command" or "'" not in word]
    block = {"grid": {"params.word": escaped}}
    values = {"entry": None, kind: program, "sweep": block, "restart": {"max_crashes": 0}}
    sent = clusterdp.submit_sweep({"run_dir": "s", "params": {}, **values})
    for number in (0, 5, len(wanted) - 1) if kind == "script" else range(len(wanted)):
        run_element(sent.folder, number, stubs)
        assert json.loads(Path(out).read_text()) == wanted[number]
        Path(out).unlink()
    assert not list(tmp_path.rglob("pwned"))


def run_element(folder: SweepDir, number: int, stubs: Stubs) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "SLURM_JOB_ID": "44",
        "SLURM_ARRAY_JOB_ID": "4321",
        "SLURM_ARRAY_TASK_ID": str(number),
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_JOB_PARTITION": "main",
    }
    words = ["bash", str(folder.script(0))]
    return subprocess.run(words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def test_sweep_element_without_its_words_file_is_a_failed_start(work: Path, stubs: Stubs) -> None:
    sent = submit("params.lr=1,2", entry=None, command="echo ${params.lr}")
    (sent.jobs[1].run.path / "words").unlink()
    assert "crashed at its start with exit code 4" in run_element(sent.folder, 1, stubs).stderr
    assert run_element(sent.folder, 0, stubs).returncode == 0


def test_sweep_element_is_requeued_and_resubmitted_alone(work: Path, stubs: Stubs) -> None:
    """Its job id is the array's own here, as that of the last element is."""
    sent = submit("params.lr=1,2", entry=None, command="sh -c 'exit 75' ${params.lr}")
    assert run_element(sent.folder, 1, stubs).returncode == 0
    assert [call for call in stubs.calls("scontrol") if call.startswith("requeue")] == ["requeue 4321_1"]
    stubs.answer("RUNNING", "None", requeue="Requested operation is presently disabled for job 4321_0", code=1)
    run_element(sent.folder, 0, stubs)
    again = stubs.calls("sbatch")[-1]
    assert again.startswith(
        f"--parsable --dependency=afterany:4321_0 --array=0 {work}/s/job.sbatch CLUSTERDP_CHAIN=4321_0"
    )
    assert "4321_0" in [event.get("job") for event in read_events(sent.jobs[0].run) if event["event"] == "submitted"]


def test_sweep_element_text_has_its_number_and_values(work: Path) -> None:
    plan = make_sweep_plan(config.read({"entry": "train:main"}, sweeps=["params.lr=0.5,1"]))
    element: Element = plan.sweep.elements[1]
    assert str(element) == "element 1 (params.lr=1)"
    assert isinstance(plan.folder.element(1), RunDir)
    with pytest.raises(ClusterdpError, match=r"sweep: is empty"):
        clusterdp.submit_sweep({"entry": "train:main"})
