"""The rules of the house: who may import whom, and what starting the command line may load."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "clusterdp"

LOGIN_NODE = {"batch", "wording", "plainfile", "slurm", "config", "rundir", "storage", "errors"}
# Which of our own parts each part may import; itself goes without saying. `a.b` allows that module or folder alone.
MAY_IMPORT = {
    "errors": set(),
    "plainfile": set(),
    "procfs": set(),
    "wording": set(),
    "batch": set(),  # it is copied into run folders, and runs there with any Python
    "rundir": {"errors", "plainfile", "slurm.jobid"},
    "storage": {"errors", "plainfile", "batch.nodes.keeper"},  # the process that holds a node's files in memory
    "slurm": {"errors"},
    "site_profile": {"errors"},
    "config": {
        "errors",
        "plainfile",
        "site_profile",
        "storage.address",
        "wording",
    },  # a URL with a password in it is refused
    "submission": LOGIN_NODE | {"operate.notebook", "operate.queue.dependency", "procfs"},
    "operate": LOGIN_NODE | {"checkpoint.format", "checkpoint.errors", "procfs"},
    "remote": LOGIN_NODE
    | {"site_profile", "submission", "operate.output", "operate.checkpoints", "operate.find", "procfs"}
    | {"operate.listing", "operate.status", "operate.top"}  # a source of `top`
    | {"operate.report", "cli"},  # there.py runs a command line
    "functions": LOGIN_NODE | {"submission", "fakeslurm.cluster", "rehearse.clusters"},
    "check": LOGIN_NODE | {"submission", "checkpoint.format", "operate.find.run_index", "operate.output"},
    "checkpoint": {"storage", "rundir", "errors", "wording", "procfs"},
    "train": {"checkpoint", "procfs", *LOGIN_NODE},
    "recipes": {"train", "checkpoint", "errors"},
    # Its own checkpoints are read without torch: on a laptop the job alone pays for loading that.
    "rehearse": LOGIN_NODE | {"procfs", "submission", "operate", "check", "fakeslurm", "checkpoint.format"},
    "fakeslurm": set(),  # it is a distribution of its own, too
}
# The rooms of a part from the ground up: each may import those below it, also for type checkers alone. Modules beside
# the folders are rooms, too.
FLOORS = {
    "submission": "entry_check installed_check job render send snapshot plan resume sweep init show",
    "batch": "files processes decide nodes act attempt rescue main __main__ beside",
    "check": "finding program subject cluster node_counts survival surroundings check at_submit show_check",
    "operate": (
        "output record find queue account why checkpoints status logs beside sweep change listing compare html_page"
        " report top notebook"
    ),
    "checkpoint": "errors format state save load checkpointer",
    "fakeslurm": (
        "errors core client slurmdbd slurmstepd slurmctld commands start_daemon daemon_main shape_file"
        " install_commands cluster cli pytest_plugin"
    ),
    "rehearse": "state observe run_spec clusters drills judge shortening run_process one_run rehearsal show",
    "train": (
        "argument_names preflight output settings hang ranks parallel data optim profile witness loop job process"
        " trainer worker"
    ),
}
# Against that order: the daemon finds a command by its name when one is asked for.
UPWARD = {("fakeslurm.slurmctld.daemon", "fakeslurm.commands")}
# cli and the package's own front doors meet everybody, each thing when it is needed.
FREE = {"cli", "__init__", "__main__"}

# Where each library may be imported: a folder, or a file. Nobody else, not even inside a function.
OWNERS = {
    "torch": ("train/", "checkpoint/", "recipes/", "rehearse/state/tensor_files.py"),
    "submitit": ("submission/send/submitit.py",),
    "omegaconf": ("config/",),
    "fsspec": ("storage/",),
    "botocore": ("storage/s3.py",),
    "sshfs": ("storage/sftp.py",),
    "asyncssh": ("storage/sftp.py",),
    "cloudpickle": ("functions.py", "train/process/launch.py", "train/process/launched_rank.py"),
    "jinja2": ("submission/render/script.py", "operate/html_page/document.py"),
    "textual": ("operate/top/",),
}
TORCH_FREE = ("checkpoint/format/", "checkpoint/errors.py")  # what login nodes read of checkpoints
STDLIB_ONLY = ("batch/", "slurm/", "fakeslurm/")


LARGEST, AVERAGE = 450, 130  # lines of a module
TABLES = {"operate/why/signatures.py"}  # data, which may be longer

# The lines that each part may have: they may only fall. Who needs more says in the commit what the lines buy.
MOST_LINES = {
    # tasks that stand for forked ranks; the agent of a node; ranks that go on with fewer nodes; logs of nodes
    "batch": 6547,
    "check": 3420,
    "checkpoint": 7823,  # the file of a node, which its ranks write together
    "cli": 2220,
    "config": 2715,
    "fakeslurm": 17335,
    "operate": 12095,  # `top`, and `list --watch` as its plain text; ranks that share a log
    "recipes": 700,
    "rehearse": 7900,
    "remote": 1790,  # --on HOST: a cluster behind ssh
    "rundir": 700,
    "slurm": 1100,
    "storage": 1510,
    "submission": 3300,
    "top": 690,
    "train": 18116,  # a fork server on each node; the same bits on any number of ranks
}

PARTS = {path.stem for path in PACKAGE.iterdir() if path.suffix in ("", ".py")}


def modules() -> Iterator[str]:
    """Each file of the package, as a path relative to it."""
    yield from sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@cache
def imports(file: str, typing: bool = False) -> set[str]:
    """The full names that a file imports, wherever in it. typing: those for type checkers alone count, too."""
    tree = ast.parse((PACKAGE / file).read_text())
    skipped = set() if typing else {id(n) for block in _typing_blocks(tree) for n in ast.walk(block)}
    here = ("clusterdp", *Path(file).with_suffix("").parts)
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def _typing_blocks(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from node.body


def part_of(dotted: str) -> str:
    """`clusterdp.submission.render.script` -> `submission`."""
    return dotted.removeprefix("clusterdp.").partition(".")[0]


def of_ours(file: str, typing: bool = False) -> set[str]:
    """Imports of our own modules, without the leading `clusterdp.`, and without the package's public names."""
    names = {name.partition(".")[2] for name in imports(file, typing) if name.split(".")[0] == "clusterdp"}
    return {name for name in names if name.split(".")[0] in PARTS}


def test_each_subpackage_imports_only_its_allowed_subpackages() -> None:
    bad = []
    for file in modules():
        part = part_of(Path(file).with_suffix("").parts[0])
        if part in FREE:
            continue
        assert part in MAY_IMPORT, f"{part} is new here: give it a line in MAY_IMPORT, and in the design"
        for name in sorted(of_ours(file)):
            allowed = {part, *MAY_IMPORT[part]}
            if part_of(name) not in allowed and not any(f"{name}.".startswith(f"{each}.") for each in allowed):
                bad.append(f"{file} imports {name}")
    assert not bad


def dotted(file: str) -> str:
    return ".".join(("clusterdp", *Path(file).with_suffix("").parts)).removesuffix(".__init__")


@cache
def arrows(typing: bool = False) -> dict[str, set[str]]:
    """Which modules of ours each module imports, without the leading `clusterdp.`."""
    names = {dotted(file).partition(".")[2]: file for file in modules()}

    def module(name: str) -> str:
        """That a name is in: `train.say.say` -> `train.say`."""
        return name if name in names or not name else module(name.rpartition(".")[0])

    return {name: {module(each) for each in of_ours(file, typing)} - {name, ""} for name, file in names.items()}


@pytest.mark.parametrize("part", FLOORS)
def test_modules_import_only_the_same_or_lower_layers_of_their_subpackage(part: str) -> None:
    floors = FLOORS[part].split()
    rooms = {name.split(".")[1] for name in arrows() if name.startswith(f"{part}.")}
    assert rooms == set(floors), "give a new room its place among the floors of its part, and in the design"
    up = {
        (name, other)
        for name, others in arrows(typing=True).items()
        for other in others
        if name.startswith(f"{part}.") and other.startswith(f"{part}.")
        if floors.index(name.split(".")[1]) < floors.index(other.split(".")[1])
    }
    assert up <= UPWARD


def test_modules_have_no_circular_imports() -> None:
    def beyond(name: str) -> set[str]:
        seen: set[str] = set()
        ahead = [*arrows().get(name, ())]
        while ahead:
            each = ahead.pop()
            if each not in seen:
                seen.add(each)
                ahead += arrows().get(each, ())
        return seen

    packages = {dotted(file).partition(".")[2] for file in modules() if file.endswith("__init__.py")}
    assert sorted(name for name in arrows() if name not in packages and name in beyond(name)) == []


def test_module_line_counts_respect_the_maximum_and_the_minimum_average() -> None:
    """Each module costs its reader a header and a place to remember: 15 % of all lines were headers once."""
    lines = {file: len((PACKAGE / file).read_text().splitlines()) for file in modules()}
    assert [file for file, count in lines.items() if count > LARGEST and file not in TABLES] == []
    assert sum(lines.values()) / len(lines) >= AVERAGE, "a small module belongs to its only reader in the same folder"


def test_lines_of_each_part_only_fall() -> None:
    lines: dict[str, int] = {}
    for file in modules():
        part = file.partition("/")[0] if "/" in file else "top"
        lines[part] = lines.get(part, 0) + len((PACKAGE / file).read_text().splitlines())
    assert {part: count for part, count in lines.items() if count > MOST_LINES[part]} == {}
    high = {part: most for part, most in MOST_LINES.items() if most - lines[part] >= 200}
    assert high == {}, "lower the numbers to those that are left"


@pytest.mark.parametrize("library", OWNERS)
def test_each_external_library_is_imported_only_in_its_assigned_modules(library: str) -> None:
    importing = {file for file in modules() if any(name.split(".")[0] == library for name in imports(file))}
    strangers = {file for file in importing if not file.startswith(OWNERS[library])}
    assert importing, f"nobody imports {library}: is this test looking at the right files?"
    assert not strangers
    assert library != "torch" or not any(file.startswith(TORCH_FREE) for file in importing)


def test_batch_slurm_and_fakeslurm_import_only_the_standard_library() -> None:
    # The commands of the fake start without site-packages, and find its modules by their bare names.
    ours = {"clusterdp", *(path.stem for path in (PACKAGE / "fakeslurm").rglob("*.py"))}
    for file in modules():
        if file.startswith(STDLIB_ONLY) and file != "batch/__main__.py":  # that is run in a copy, beside `batch`
            roots = {name.split(".")[0] for name in imports(file)} - ours
            own = {"fakeslurm/cli.py": {"yaml"}, "fakeslurm/pytest_plugin.py": {"pytest"}}  # if they are there
            assert roots - own.get(file, set()) <= set(sys.stdlib_module_names) | {"__future__"}, file


def test_slurm_commands_are_run_in_two_modules_only() -> None:
    """So that what is asked of Slurm, and how its answers are read, can be seen there. The fake is not a client."""
    commands = {"sbatch", "srun", "squeue", "scancel", "scontrol", "sacct", "sinfo"}
    for file in modules():
        if file.startswith("fakeslurm/") or file in ("slurm/commands.py", "batch/processes/slurm.py"):
            continue
        for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
            if isinstance(node, ast.Call) and "subprocess" in ast.unparse(node.func):
                words = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
                assert not words & commands, f"{file}:{node.lineno}"


def test_ruff_checks_every_module() -> None:
    """A folder named like build output (`dist`) is left out without a word: nine modules were, for months."""
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    folders = [PACKAGE, ROOT / "configs"]
    listed = subprocess.run(
        [ruff, "check", "--show-files", *folders], capture_output=True, text=True, check=True
    ).stdout
    there = {file for folder in folders for file in folder.rglob("*.py")}
    assert {Path(line) for line in listed.splitlines() if line.endswith(".py")} == there


def test_importing_clusterdp_loads_no_third_party_library() -> None:
    assert not loaded_by("import clusterdp") & {"torch", "submitit", "omegaconf", "fsspec", "jinja2", "rich", "yaml"}


def test_checkpoint_format_imports_no_torch() -> None:
    """`status` and `checkpoint ls` read manifests on login nodes, where torch takes a minute to load from NFS."""
    names = ", ".join(dotted(file) for file in modules() if file.startswith(TORCH_FREE))
    assert "torch" not in loaded_by(f"import {names}")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder as a submitted job leaves it at first."""
    folder = tmp_path_factory.mktemp("login") / "run"
    for name in ("attempts/17.0/logs", "events", "metrics", "code"):
        (folder / name).mkdir(parents=True)
    (folder / "config.yaml").write_text("name: digits\nentry: clusterdp.recipes.digits:main\n")
    (folder / "job.sbatch").write_text("#!/bin/bash\n")
    (folder / "attempts/17.0/logs/rank-00000.out").write_text("hello\n")
    events = [
        {"time": 1.0, "event": "submitted", "attempt": "submit-17", "job": "17", "name": "digits", "backend": "sbatch"},
        {"time": 2.0, "event": "started", "attempt": "17.0", "job": "17", "restart": 0, "nodes": "n[1-2]"},
        {"time": 3.0, "event": "finished", "attempt": "17.0", "step": 4},
    ]
    (folder / "metrics/17.0.jsonl").write_text('{"time": 2.5, "step": 1, "loss": 0.5}\n')
    (folder / "events/17.0-batch.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of steps 1 and 2, which are the same to the last bit."""
    import torch

    from clusterdp.checkpoint import Checkpointer

    folder = tmp_path_factory.mktemp("checkpoints")
    model = torch.nn.Linear(3, 3)
    for step in (1, 2):
        Checkpointer(folder, {"model": model}).save(step)
    return folder


VERBS = {
    "--help": ["--help"],
    "--version": ["--version"],
    "submit --help": ["submit", "--help"],
    "submit --dry-run": ["submit", "configs/digits.yaml", "--dry-run"],
    "check": ["check", "configs/digits.yaml"],
    "show": ["show", "configs/digits.yaml"],
    "list": ["list"],
    "note": ["note", "RUN", "baseline"],
    "rm --dry-run": ["rm", "RUN", "--dry-run"],
    "status": ["status", "RUN"],
    "why": ["why", "RUN"],
    "logs": ["logs", "RUN"],
    "cancel": ["cancel", "RUN"],
    "report": ["report", "RUN"],
    "plot": ["plot", "RUN", "loss"],
    "checkpoint ls": ["checkpoint", "ls", "CHECKPOINTS"],
    "checkpoint ls RUN": ["checkpoint", "ls", "RUN", "--json"],
    "checkpoint verify": ["checkpoint", "verify", "CHECKPOINTS"],
    "checkpoint diff": ["checkpoint", "diff", "CHECKPOINTS", "CHECKPOINTS"],
    "checkpoint diff of equal bytes": ["checkpoint", "diff", "CHECKPOINTS", "1", "2"],
    "checkpoint export": ["checkpoint", "export", "CHECKPOINTS", "x.safetensors"],
    "checkpoint prune": ["checkpoint", "prune", "CHECKPOINTS", "--keep-last", "1", "--dry-run"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_login_node_commands_load_no_torch(verb: str, run_folder: Path, checkpoints: Path, tmp_path: Path) -> None:
    places = {"RUN": str(run_folder), "CHECKPOINTS": str(checkpoints)}
    words = [places.get(word, word) for word in VERBS[verb]]
    expected = "== 4" if verb in ("cancel", "rm --dry-run") else "== 0"  # there is no Slurm to tell of it, or to ask
    names = loaded_by(f"from clusterdp.cli import main\nassert main({words!r}) {expected}", cwd=tmp_path)
    assert "torch" not in names
    if verb.endswith("--help") or verb in ("--version", "status", "why", "list", "note", "cancel"):
        assert not names & {"submitit", "omegaconf", "fsspec", "jinja2", "textual"}, (
            "they cost more than the verb itself"
        )


def loaded_by(code: str, cwd: Path = ROOT) -> set[str]:
    """The modules loaded in an interpreter of its own when `code` has run, or has called sys.exit."""
    report = "\nfinally:\n    import sys\n    print('\\0'.join(['', *sys.modules]), file=sys.stderr)\n"
    body = "try:\n" + "".join(f"    {line}\n" for line in code.splitlines()) + "except SystemExit: pass" + report
    quiet = {"PATH": "", "HOME": str(cwd), "PYTHONPATH": str(ROOT)}  # nothing of the user's, nor the machine's Slurm
    command = [sys.executable, "-c", body]
    done = subprocess.run(command, env=quiet, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stderr.split("\0", 1)[1].strip().split("\0"))


def tracked() -> Iterator[tuple[str, str]]:
    """The text files of the repository that git knows or would add: (path, text)."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in sorted(set(filter(None, listed.stdout.split("\0")))):
        path = ROOT / name
        if path.is_file() and path != Path(__file__):
            try:
                yield name, path.read_text()
            except UnicodeDecodeError:
                continue


def test_repository_files_contain_no_path_outside_the_repository() -> None:
    """A user's clone has neither the folders beside ours nor our machine's paths."""
    outside = (f"{ROOT}/", "/".join(["..", "shared"]))
    bad = [(name, word) for name, text in tracked() for word in outside if word in text]
    assert not bad


def test_repository_text_files_have_no_conflict_markers_and_stay_below_1_mb() -> None:
    for name, text in tracked():
        assert "\n<<<<<<< " not in text, name
        assert len(text) < 1_000_000, name
