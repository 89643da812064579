"""The tests that belong to a part of the package: `python -m tests.part clusterdp/checkpoint` prints their paths.

A folder has those of its mirror under tests/. A module has the file that is named after it; without one, those of the
mirror's files that import it; without any, the whole mirror.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Those of another name, and of parts that nearly all tests import.
MIRRORS = {
    "slurm": ["slurm_types"],
    "fakeslurm": ["fakeslurm", "slurm_facts"],
    "errors": ["test_maps.py"],  # compares their tree with the pages
    "rundir": [
        "operate/test_odd_files.py",
        "operate/test_logs.py",
        "operate/test_run_history.py",
        "launch/test_lock.py",
    ],
}


def paths_for(part: str) -> list[Path]:
    path = Path(part.removesuffix("/"))
    if path.is_absolute():
        path = path.relative_to(ROOT)
    if path.parts[:1] != ("clusterdp",) or not (ROOT / path).exists():
        raise SystemExit(
            f"P={part}: is no part of the package. Give a folder or a file, such as P=clusterdp/checkpoint."
        )
    if path == Path("clusterdp"):
        return [ROOT / "tests"]
    mirror = _mirror(Path(path.parts[1]).stem)
    if mirror and len(path.parts) == 2:
        return mirror
    files = _test_files(mirror or [ROOT / "tests"])
    modules = [path] if path.suffix else [each.relative_to(ROOT) for each in (ROOT / path).rglob("*.py")]
    return sorted({file for module in modules for file in _of_module(module, files)}) or mirror or [ROOT / "tests"]


def _mirror(name: str) -> list[Path]:
    folders = [ROOT / "tests" / each for each in MIRRORS.get(name, [name])]
    return [folder for folder in folders if folder.exists()]


def _test_files(places: list[Path]) -> list[Path]:
    return sorted(file for each in places for file in ([each] if each.is_file() else each.rglob("test_*.py")))


def _of_module(module: Path, files: list[Path]) -> set[Path]:
    name = ".".join(module.with_suffix("").parts).removesuffix(".__init__")
    named = {file for file in files if file.stem == f"test_{module.stem}"}
    return named or {file for file in files if name in _imports(file)}


@cache
def _imports(file: Path) -> set[str]:
    """The modules that a test imports, or names as `package.module`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


if __name__ == "__main__":
    print(" ".join(str(path.relative_to(ROOT)) for path in paths_for(*sys.argv[1:2] or [""])))
