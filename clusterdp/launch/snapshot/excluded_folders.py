"""Folders that a snapshot leaves out."""

from __future__ import annotations

from pathlib import Path


def is_clutter(folder: Path) -> bool:
    return (
        folder.name.startswith(".")
        or folder.name in {"__pycache__", "node_modules"}
        or (folder / "pyvenv.cfg").exists()
    )


def is_run(folder: Path) -> bool:
    """Whether it is a run folder. `submit` writes the lock first; runs of older versions have only a script."""
    return (folder / "submits" / "000001").exists() or (folder / "job.sbatch").exists()
