"""The generated text: golden files, bash's and shellcheck's judgement, and no syntax that macOS' bash 3.2 lacks.

`CLUSTERDP_REFRESH=1 python -m pytest tests/submission/test_script.py` writes the golden files anew; read the diff.
Where only comments and echoed text have changed, `stripped.json` stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clusterdp import config
from clusterdp.errors import ConfigError
from clusterdp.submission.render.script import directive, render
from clusterdp.submission.render.script_spec import ArraySpec, make_spec
from clusterdp.submission.render.shipped_files import shipped_folder
from clusterdp.submission.snapshot.batch_copy import PROGRAM

GOLDEN = Path(__file__).parent.parent / "golden"

CASES: dict[str, dict[str, object]] = {
    "entry": {
        "name": "digits",
        "entry": "train:main",
        "resources": {"nodes": 2, "tasks_per_node": 2, "time": "2:00:00"},
    },
    "command": {
        "name": "it's a job",
        "command": ["python", "train.py", "--name", "a b"],
        "resources": {
            "nodes": 4,
            "gpus_per_node": "a100:8",
            "cpus_per_task": 12,
            "mem": "0",
            "extra": {"mail-type": "END"},
        },
        "launch": {
            "env": {"NCCL_DEBUG": "INFO"},
            "modules": ["gcc/13", "cuda/12.4"],
            "setup": ["source env.sh"],
            "signal": "USR1@90",
        },
    },
    "spare": {
        "entry": "train:main",
        "resources": {"nodes": 2, "spare_nodes": 1, "gpus_per_node": 4},
        "launch": {"environment": "envs/torch's.tar.gz"},
    },
    "script": {
        "name": "lines",
        "script": "cd $SCRATCH\npython train.py | tee log",
        "restart": {"hang_after_s": 600},
    },
    "torchrun": {
        "name": "agents",
        "command": "train.py --epochs 3",
        "resources": {"nodes": 2, "gpus_per_node": 4, "cpus_per_task": 6},
        "launch": {"launcher": "torchrun"},
        "restart": {"requeue": False, "from_step": 40},
    },
    "pyxis": {
        "name": "contained",
        "entry": "train:main",
        "resources": {"gpus_per_task": "1", "tasks_per_node": 4, "nodes": 2},
        "launch": {
            "python": "python",
            "container": {"image": "nvcr.io#nvidia/pytorch:24.10-py3", "mounts": ["/data:/data:ro"]},
        },
    },
    "preflight": {
        "entry": "train:main",
        "resources": {"nodes": 2, "gpus_per_task": "a100:1", "tasks_per_node": 4},
        "launch": {"preflight": True},
    },
    "notify": {
        "name": "it's a job",
        "entry": "train:main",
        "notify": {"on": ["end", "failure", "hang", "requeue"], "webhook_file": "/home/me/it's mine"},
    },
    "apptainer": {
        "name": "contained",
        "command": "python train.py",
        "resources": {"gpus_per_node": 2},
        "launch": {"container": {"runtime": "apptainer", "image": "/images/torch.sif"}},
    },
    "sweep": {"name": "digits", "entry": "train:main", "checkpoint": {"url": "s3://bucket/it's mine/"}},
    "sweep_command": {
        "command": "python train.py",
        "restart": {"how": "resubmit", "chain": 3},
        "launch": {"launcher": "torchrun"},
    },
    "sweep_script": {"name": "lines", "script": "cd $SCRATCH\npython train.py | tee log"},
}
ARRAYS = {
    "sweep": ArraySpec(0, 6, parallel=2),
    "sweep_command": ArraySpec(2000, 5),
    "sweep_script": ArraySpec(0, 2),
}


def rendered(values: dict[str, object], array: ArraySpec | None = None) -> str:
    loaded = config.from_mapping(values)
    spec = make_spec(loaded, Path("/home/me/runs/x y"), Path("/home/me"), "/opt/venv/bin/python")
    return render(replace(spec, array=array)).text


@pytest.mark.parametrize("case", CASES)
def test_rendered_batch_script_equals_its_golden_file(case: str) -> None:
    path = GOLDEN / f"{case}.sbatch"
    text = rendered(CASES[case], ARRAYS.get(case))
    if os.environ.get("CLUSTERDP_REFRESH"):
        path.write_text(text)
    assert text == path.read_text(), "if the change is meant, refresh the golden files and read their diff"


def stripped(script: str) -> str:
    """Without comments, and without what it tells people."""
    lines = (re.sub(r"(^|\s)#(?![!]|SBATCH ).*", "", line).rstrip() for line in script.splitlines())
    return re.sub(r'echo "clusterdp:(?:[^"\\]|\\.)*"', "echo", "\n".join(filter(None, lines)) + "\n")


@pytest.mark.parametrize("case", CASES)
def test_batch_script_without_comments_and_messages_equals_its_recorded_digest(case: str) -> None:
    text = stripped(rendered(CASES[case], ARRAYS.get(case)))
    path = GOLDEN / "stripped.json"
    known = json.loads(path.read_text())
    digest = hashlib.sha256(text.encode()).hexdigest()
    if os.environ.get("CLUSTERDP_REFRESH"):
        path.write_text(json.dumps({**known, case: digest}, indent=1, sort_keys=True) + "\n")
    assert json.loads(path.read_text())[case] == digest, "more has changed than comments and echoed text"
    assert "clusterdp: " not in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize("case", [*CASES, "setup.bash", "interface.bash", "environment.bash"])
def test_batch_scripts_pass_bash_n_and_shellcheck(case: str, tmp_path: Path) -> None:
    path = tmp_path / "job.bash"
    path.write_text(rendered(CASES[case], ARRAYS.get(case)) if case in CASES else (PROGRAM / case).read_text())
    subprocess.run(["bash", "-n", path], check=True)
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).parent / "shellcheck")
    # SC1091: files of the compute node; SC2016: quoted values with a $ are meant as they are; SC2034: of setup.bash
    done = subprocess.run(
        [shellcheck, "--exclude=SC1091,SC2016,SC2034", path], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
    assert done.returncode == 0


LATER_THAN_3_2 = {
    r"\$\{\w+(,,?|\^\^?)\}": "case modification (4.0)",
    r"\b(declare|local|typeset) -[a-zA-Z]*[An]": "associative arrays (4.0), namerefs (4.3)",
    r"\b(mapfile|readarray|coproc)\b": "4.0",
    r"\bwait -[npf]": "wait -n (4.3)",
    r"&>>|\|&": "4.0",
    r"\$\{\w+@[A-Za-z]\}": "transformations (4.4)",
    r"printf -v \w+\[": "printf into an element (4.1)",
    r"printf [^\n]*%\(": "printf of times (4.2)",
    r"\[\[? -v ": "test -v (4.2)",
    r"\$\{[\w@]+: -\d": "fine in 3.2 for strings, but not for negative lengths",
    r"\bread -[a-z]*[Ni]": "read -N (4.1), read -i (4.0)",
    r";;?&": "fall through (4.0)",
    r"\{\w+\}[<>]": "named file descriptors (4.1)",
}


DEVELOPERS = Path(__file__).parents[2] / ".ci"
SHELL_TEXTS = sorted(
    p for folder in (shipped_folder("sbatch_templates"), DEVELOPERS) for p in folder.rglob("*") if p.suffix != ".txt"
)


@pytest.mark.parametrize("path", [path for path in SHELL_TEXTS if path.is_file()], ids=lambda path: path.name)
def test_shipped_and_ci_shell_files_use_only_bash_3_2_syntax(path: Path) -> None:
    """Macs have no later one: what came later is a syntax error there, or silently something else."""
    for pattern, what in LATER_THAN_3_2.items():
        assert not re.search(pattern, path.read_text()), f"{path.name}: {what}"


def test_user_template_may_include_shipped_parts(tmp_path: Path) -> None:
    mine = tmp_path / "mine.j2"
    mine.write_text('#!/bin/bash\nrun_dir={{ run_dir }}\n{% include "parts/interface.sh" %}\n')
    text = rendered({"command": "true", "launch": {"template": str(mine)}})
    assert "run_dir='/home/me/runs/x y'" in text
    assert ". '/home/me/runs/x y/batch'/interface.bash" in text


def test_template_including_a_missing_part_is_refused_with_a_list_of_parts(tmp_path: Path) -> None:
    mine = tmp_path / "mine.j2"
    mine.write_text('#!/bin/bash\n{% include "parts/end.sh" %}\n')
    with pytest.raises(ConfigError, match=r"mine\.j2: there is no parts/end\.sh\. There are: .*parts/interface\.sh"):
        rendered({"command": "true", "launch": {"template": str(mine)}})


def test_template_with_unknown_variable_or_syntax_error_and_missing_template_are_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine.j2"
    mine.write_text("#!/bin/bash\necho {{ nodez }}\n")
    with pytest.raises(
        ConfigError,
        match=r"mine\.j2: 'nodez' is undefined.*modules, name, nodes, python, ranks_per_node,",
    ):
        rendered({"command": "true", "launch": {"template": str(mine)}})
    mine.write_text("#!/bin/bash\n{% if %}\n")
    with pytest.raises(ConfigError, match=r"mine\.j2:2: "):
        rendered({"command": "true", "launch": {"template": str(mine)}})
    with pytest.raises(ConfigError, match="no such file"):
        rendered({"command": "true", "launch": {"template": str(tmp_path / "none.j2")}})


def test_sbatch_signal_option_is_set_by_default_only_for_entry_jobs() -> None:
    assert "#SBATCH --signal=USR2@60" in rendered({"entry": "a:b"})
    assert "--signal" not in rendered({"command": "true"})
    assert "#SBATCH --signal=USR1@30" in rendered({"command": "true", "launch": {"signal": "USR1@30"}})


def test_sbatch_requests_one_task_per_rank_or_one_per_node_under_torchrun() -> None:
    size = {"nodes": 2, "tasks_per_node": 4, "cpus_per_task": 3}
    ranks = rendered({"command": "true", "resources": size})
    assert "#SBATCH --ntasks-per-node=4\n#SBATCH --cpus-per-task=3\n" in ranks
    agents = rendered({"command": "true", "resources": size, "launch": {"launcher": "torchrun"}})
    assert "#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=12\n" in agents
    assert "job_nodes=${SLURM_JOB_NUM_NODES:-2} " in agents and "  --nproc-per-node=4" in agents
    assert "export PET_NNODES=$SLURM_NTASKS " in agents


def test_spare_nodes_are_requested_and_left_to_the_batch_program() -> None:
    resources = {"nodes": 2, "spare_nodes": 1, "tasks_per_node": 4, "gpus_per_node": 4}
    ranks = rendered({"command": "true", "resources": resources})
    agents = rendered({"command": "train.py", "resources": resources, "launch": {"launcher": "torchrun"}})
    for text, tasks in ((ranks, "$((job_nodes * 4))"), (agents, '"$job_nodes"')):
        assert text.count("#SBATCH --nodes=3\n") == text.count("#SBATCH --no-kill\n") == 1
        assert "job_nodes=2 " in text and f'step=(srun --nodes="$job_nodes" --ntasks={tasks} ' in text
    assert "NODE_RANK=$((SLURM_PROCID / 4))\n" in ranks, "SLURM_NODEID follows the sorted nodes"


@pytest.mark.parametrize("in_place", [True, False])
def test_range_of_nodes_outlives_a_loss_if_it_restarts_in_place(in_place: bool) -> None:
    values = {"resources": {"nodes": "2-4", "tasks_per_node": 4}, "restart": {"in_place": in_place}}
    text = rendered({"command": "true", **values})
    assert ("#SBATCH --no-kill\n" in text) is in_place
    assert (" on the nodes that are left" in text.replace("\n# ", " ")) is in_place
    assert f"NODE_RANK={'$((SLURM_PROCID / 4))' if in_place else '$SLURM_NODEID'}\n" in text


@pytest.mark.parametrize(("nodes", "asked"), [("2-4", "3-5"), ("2,4-8", "3,5-9")])
def test_spare_nodes_are_requested_beside_each_number_of_a_range(nodes: str, asked: str) -> None:
    text = rendered({"command": "true", "resources": {"nodes": nodes, "spare_nodes": 1}})
    assert f"#SBATCH --nodes={asked}\n" in text
    assert "job_nodes=$((${SLURM_JOB_NUM_NODES:-3} - 1)) " in text


@pytest.mark.parametrize(
    "values",
    [{"restart": {"in_place": False}}, {"restart": {"requeue": False}}, {"entry": "a:b", "backend": "submitit"}],
)
def test_spare_nodes_need_a_restart_in_place(values: dict[str, object]) -> None:
    program = {} if "entry" in values else {"command": "true"}
    with pytest.raises(ConfigError, match=r"resources\.spare_nodes: needs restart\.in_place: true"):
        config.from_mapping({**program, **values, "resources": {"spare_nodes": 1}})


def test_ranks_per_node_default_to_gpus_per_node() -> None:
    assert "#SBATCH --ntasks-per-node=8\n" in rendered({"command": "true", "resources": {"gpus_per_node": "a100:8"}})
    both = {"gpus_per_node": "8", "tasks_per_node": 2}
    assert "#SBATCH --ntasks-per-node=2\n" in rendered({"command": "true", "resources": both})


def test_percent_sign_in_the_run_folder_path_is_doubled_in_sbatch_output() -> None:
    loaded = config.from_mapping({"command": "true"})
    text = render(make_spec(loaded, Path("/a%j"), Path("/"), "python")).text
    assert "#SBATCH --output=/a%%j/slurm-%j.out" in text


def test_control_character_in_an_sbatch_directive_is_refused() -> None:
    for text in ("a\nb", "a\rb", "a\0b"):
        with pytest.raises(ConfigError, match="--comment"):
            directive("comment", text)
