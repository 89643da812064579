"""candidates(): the files in a run's working folder that may be its end state."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from clusterdp.rehearse.state.files import ARRAYS, JSON, TORCH, looks_pickled

_SKIPPED = {"__pycache__", "node_modules", "site-packages", "wandb", "mlruns", "tensorboard", "cache", "venv", "events"}
_INPUT = re.compile(r"(?:train|val|valid|test|data|dataset|vocab|meta|tokenizer.*|config|package.*)", re.IGNORECASE)
# Stems of files in a checkpoint that consists of several files.
_PIECE = re.compile(r"(?:optimizer|scheduler|scaler|rng_state|random_states)(?:_\d+)?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_LAST = re.compile(r"last|latest|final|checkpoint|ckpt|resume|state", re.IGNORECASE)
_BEST = re.compile(r"best|ema", re.IGNORECASE)


def candidates(folder: Path, since: float) -> list[Path]:
    """Returns files, and folders of whole checkpoints, that were written after `since` (seconds since 1970), best
    first.

    A file that was in the folder when the run began counts only if it was written again. Of a series (`step_100.pt`,
    `step_200.pt`), only the last file counts. The best model counts if there is no checkpoint, and JSON files count if
    there is no other file. A single folder of a whole checkpoint is the only candidate, and so is a single file with a
    name such as `last`."""
    written = [path for path in _files(folder) if _written(path) >= since]
    found: dict[str, Path] = {}
    for path in sorted({_whole(path, folder, written) for path in written}, key=_order):
        found[_NUMBER.sub("#", str(path.relative_to(folder)))] = path  # only the last file of a series remains
    ranked: dict[int, list[Path]] = {}
    for path in found.values():
        ranked.setdefault(_rank(path), []).append(path)
    best = ranked[min(ranked)] if ranked else []
    for obvious in ([path for path in best if path.is_dir()], [path for path in best if _LAST.search(path.stem)]):
        if len(obvious) == 1:
            return obvious
    return sorted(best, key=lambda path: (not _LAST.search(path.stem), -_written(path), str(path)))


def best_models(folder: Path, since: float) -> list[Path]:
    """Returns models that were kept for their score, written after `since`. A resume may replace such a model by a
    worse model."""
    return sorted(path for path in _files(folder) if _written(path) >= since and _rank(path) == 1)


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name.lower() not in _SKIPPED]
        for name in names:
            path = Path(root, name)
            if path.suffix not in (*TORCH, *ARRAYS, *JSON) or name.startswith(".") or _INPUT.fullmatch(path.stem):
                continue
            if path.suffix != ".bin" or looks_pickled(path):
                yield path


def _whole(path: Path, folder: Path, written: list[Path]) -> Path:
    """Returns the file's folder if it is a checkpoint of several files (transformers, accelerate), else the file.

    Such a folder has files that are named after parts, such as `optimizer`.
    """
    beside = {each.stem.partition(".")[0] for each in written if each.parent == path.parent}
    several = any(_PIECE.fullmatch(name) for name in beside)
    return path.parent if several and path.parent != folder else path


def _order(path: Path) -> tuple[list[float], float]:
    return [float(number) for number in _NUMBER.findall(path.name)], _written(path)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _rank(path: Path) -> int:
    """Returns the rank of a candidate: 0 for a checkpoint, 1 for the best model, 2 for arrays, 3 for JSON."""
    if path.suffix in JSON:
        return 3
    if path.suffix in (".npy", ".npz"):
        return 2
    return 1 if _BEST.search(path.stem) else 0
