"""The tests that belong to a part of the package: `python -m tests.part clusterdp/checkpoint` prints their paths.

A folder has those of its mirror under tests/. A module has the file that is named after it, and those of the mirror's
files that import it or, if its package exports it, the package; without any, the whole mirror. Both have the files of
other mirrors that import one of their modules, themselves or through docs/tools. sbatch_templates has those of
submission, configs those of recipes. The tests that cut across all parts are always among them.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Those of another name, and of parts that nearly all tests import.
MIRRORS = {
    "functions": ["e2e/test_functions.py"],
    "slurm": ["slurm_types"],
    "fakeslurm": ["fakeslurm", "slurm_facts"],
    "__main__": ["cli"],
    "errors": [],
    "plainfile": ["operate/test_odd_files.py"],
    "procfs": ["test_procfs.py"],
    "rundir": ["operate/test_odd_files.py", "operate/logs", "operate/record", "submission/test_lock.py"],
    "site_profile": ["config", "remote"],
    "wording": ["test_wording.py"],
}
ACROSS = [ROOT / "tests" / name for name in ("test_maps.py", "test_architecture.py")]


def paths_for(part: str) -> list[Path]:
    path = Path(part.removesuffix("/"))
    if path.is_absolute():
        path = path.relative_to(ROOT)
    if path.parts[:1] not in (("clusterdp",), ("sbatch_templates",), ("configs",)) or not (ROOT / path).exists():
        raise SystemExit(
            f"P={part}: not a part of the package. Give a folder or a file, such as P=clusterdp/checkpoint."
        )
    if path in (Path("clusterdp"), Path("clusterdp/__init__.py")):
        return [ROOT / "tests"]
    return sorted({*_own(path), *ACROSS})


def _own(path: Path) -> set[Path]:
    if path.parts[0] != "clusterdp":
        return {ROOT / ("tests/recipes" if path.parts[0] == "configs" else "tests/submission")}
    name = Path(path.parts[1]).stem
    mirror = {ROOT / "tests" / each for each in MIRRORS.get(name, [name])}
    if path.suffix and len(path.parts) == 2:
        return mirror
    files = sorted(file for each in mirror for file in ([each] if each.is_file() else each.rglob("test_*.py")))
    modules = [path] if path.suffix else [each.relative_to(ROOT) for each in (ROOT / path).rglob("*.py")]
    names = {_dotted(module) for module in modules} - {_dotted(Path("clusterdp", name))}  # the part as a whole
    others = {file for file in _test_files() if names & _imports(file)}.difference(files)
    own = mirror if len(path.parts) == 2 else {file for module in modules for file in _of_module(module, files)}
    return (own or mirror) | others


def _of_module(module: Path, files: list[Path]) -> set[Path]:
    names = {_dotted(module)}
    package = module.parent / "__init__.py"
    if module.name != "__init__.py" and names & _imports(ROOT / package):
        names.add(_dotted(package))
    return {file for file in files if file.stem == f"test_{module.stem}" or names & _imports(file)}


@cache
def _test_files() -> list[Path]:
    return [*(ROOT / "tests").rglob("test_*.py")]


@cache
def _dotted(module: Path) -> str:
    return ".".join(module.with_suffix("").parts).removesuffix(".__init__")


@cache
def _imports(file: Path) -> set[str]:
    """The modules that a file imports, or names as `package.module`, and those that its modules of docs/ import."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    pages = [ROOT / f"{each.replace('.', '/')}.py" for each in found if each.startswith("docs.")]
    return found.union(*(_imports(page) for page in pages if page.exists()))


if __name__ == "__main__":
    print(" ".join(str(path.relative_to(ROOT)) for path in paths_for(*sys.argv[1:2] or [""])))
