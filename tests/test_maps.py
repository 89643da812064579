"""Maps: what a page or a docstring lists is what there is."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from clusterdp import errors
from tests.part import paths_for

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "clusterdp"
TOP = {"clusterdp", "sbatch_templates", "configs", "tests"}  # the rest is what was built or measured here
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
PAGES = "\n".join([errors.__doc__ or "", *(path.read_text() for path in (ROOT / "docs").rglob("*.md"))])
LINE = re.compile(r"^(?: {4})?([a-z_0-9]+/) {2,}\S", re.MULTILINE)


def packages() -> list[Path]:
    return sorted(path.parent for path in PACKAGE.rglob("__init__.py"))


def listing(folder: Path) -> set[str]:
    """Its modules, and its folders as `name/`."""
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    return modules | {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}


def map_of(folder: Path) -> set[str]:
    """The folders that the package's docstring lists, if there are any."""
    text = docstring(folder / "__init__.py")
    return set(LINE.findall(text)) if any(folder.glob("*/__init__.py")) else set()


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""


@pytest.mark.parametrize("folder", packages(), ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_package_docstring_lists_exactly_its_folders(folder: Path) -> None:
    there = {name for name in listing(folder) if name.endswith("/")}
    assert map_of(folder) == there, "give each folder a line in the package's docstring"


def test_each_module_has_a_docstring() -> None:
    assert [path for path in PACKAGE.rglob("*.py") if not docstring(path)] == []


def test_architecture_tree_lists_exactly_the_modules_of_clusterdp() -> None:
    block = ARCHITECTURE.split("## The tree")[1].split("```")[1]
    shown = set(re.findall(r"^  ([a-z_]+(?:/|\.py))", block, re.MULTILINE))
    there = {f"{name}" if name.endswith("/") else f"{name}.py" for name in listing(PACKAGE)}
    assert shown == there
    assert set(re.findall(r"^([a-z_]+/)", block, re.MULTILINE)) == {
        "clusterdp/",
        "sbatch_templates/",
        "configs/",
        "docs/",
        "findings/",
        "tests/",
    }


@pytest.mark.parametrize("package", ["clusterdp", "clusterdp.checkpoint", "clusterdp.fakeslurm", "clusterdp.train"])
def test_each_public_name_exists_and_is_documented(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        thing = getattr(module, name)
        if name.startswith("__"):
            continue
        is_error = isinstance(thing, type) and issubclass(thing, Exception)  # errors.py draws their tree
        assert is_error or thing.__doc__, f"{package}.{name} has no docstring"
        told = re.search(rf"\b{name}\b", PAGES) or re.search(rf"\b{name}\b", module.__doc__ or "")
        assert told, f"no page and no map speaks of {package}.{name}"


def test_paths_for_finds_existing_tests_of_every_module() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert all(found.exists() for found in paths_for(str(path.relative_to(ROOT)))), path
    assert ROOT / "tests/checkpoint/test_manifest.py" in paths_for("clusterdp/checkpoint/format/manifest.py")
    assert ROOT / "tests/config/test_messages.py" in paths_for("clusterdp/config/tree.py")
    assert ROOT / "tests/docs/test_reference.py" in paths_for("clusterdp/config/tree.py")  # through docs/tools
    assert ROOT / "tests/submission/test_policies.py" in paths_for("clusterdp/batch")
    assert ROOT / "tests/submission" in paths_for("sbatch_templates/srun.sbatch.j2")
    assert ROOT / "tests/recipes" in paths_for("configs/gan.py")
    assert ROOT / "tests/test_maps.py" in paths_for("clusterdp/rundir")
    with pytest.raises(SystemExit, match="P=nowhere: not a part of the package"):
        paths_for("nowhere")
