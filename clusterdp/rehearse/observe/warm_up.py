"""The warm-up of a training: the steps in which its learning rate rises at first."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from clusterdp.config import Config
from clusterdp.operate.compare.curves import read_curves
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.submission.render.script_spec import lines_of, words_of

_NAME = re.compile(r"(?i)warm[_-]?up")
_WORD = re.compile(r"(?i)(?<!\S)-*(?P<name>[\w.-]*warm[_-]?up[\w.-]*)(?:=|\s+)(?P<value>\d[\d.e+-]*)(?!\S)")
_PARTS = re.compile(r"(?i)ratio|frac|prop|percent|pct")
_EPOCHS = re.compile(r"(?i)(?:^|[_.-])(?:num_|n_|max_)?epochs?$")


def steps_of_warm_up(history: RunHistory, config: Config, steps: int | None) -> int:
    """Returns the number of warm-up steps of an undisturbed run, by its metric `lr`, or by an argument named warm-up.

    Returns 0 if no warm-up is known.
    """
    found = _of_metric(history) or (_of_argument(config, steps) if steps else 0)
    return found if found > 1 else 0  # inside a warm-up of one step, there is no moment for a drill


def _of_metric(history: RunHistory) -> int:
    """Returns the step at which `lr` has its first maximum, or 0 if `lr` falls before this step."""
    curve = read_curves(history).metrics.get("lr")
    if curve is None or not len(curve.kept):
        return 0
    peak = int(curve.kept.values.argmax())
    rising = np.diff(curve.kept.values[: peak + 1])
    return int(curve.kept.steps[peak]) if peak and bool((rising >= 0).all()) else 0


def _of_argument(config: Config, steps: int) -> int:
    params = {**config.params, **config.rehearse.params}
    epochs = next((value for name, value in params.items() if _EPOCHS.search(name) and not _NAME.search(name)), None)
    for name, value in _arguments(config):
        if _EPOCHS.search(name):
            if not isinstance(epochs, int | float) or not epochs:
                continue
            value *= steps / epochs
        elif _PARTS.search(name) or value < 1:
            value *= steps
        if value > 0:
            return min(steps, round(value))
    return 0


def _arguments(config: Config) -> Iterator[tuple[str, float]]:
    """Yields the arguments that are named warm-up and have a number. The arguments of a command come in reverse order,
    because the last one is valid."""
    for name, value in {**config.params, **config.rehearse.params}.items():
        if _NAME.search(name) and isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)
    words = [*words_of(config.command, "command"), *config.rehearse.args]
    words = words or lines_of(config.script, "script").replace("\\\n", " ").split()
    for match in reversed([*_WORD.finditer(" ".join(words))]):
        try:
            yield match["name"], float(match["value"])
        except ValueError:
            continue
