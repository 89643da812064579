"""known_run(), named_run(), config_path(): find the run or the config that a word of the command line names."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterdp.errors import ConfigError, RunError

if TYPE_CHECKING:
    from clusterdp.rundir import RunDir


def known_run(word: str | None, sweeps: bool = False) -> RunDir:
    """Returns the run that `word` names, and makes this process use the run's own cluster, if that cluster is up on
    this machine. Raises RunError for the folder of a sweep, unless `sweeps` is true."""
    from clusterdp.operate.find.find_run import find_run
    from clusterdp.operate.queue.run_cluster import put_on_path
    from clusterdp.rundir import is_sweep

    run = find_run(word)
    if is_sweep(run.path) and not sweeps:
        from clusterdp.operate.output.formatting import shown_path

        path = shown_path(run.path)
        raise RunError(f"{path}: is a sweep. Name an element, as {path}/0; `clusterdp sweep {path}` lists them.")
    put_on_path(run)
    return run


def named_run(verb: str, word: str | None, others: Sequence[str] = (), sweeps: bool = False) -> RunDir:
    """Returns the run for a verb that cannot be undone. Raises ConfigError if `word` names no run, because the user may
    not mean the latest run. `others` are the words after RUN."""
    missing = word is None or ("=" in word and not os.path.exists(word))
    if not missing:
        return known_run(word, sweeps)
    from clusterdp.operate.output.formatting import shown_path

    rest = "".join(f" {shlex.quote(each)}" for each in [*filter(None, [word]), *others])
    run = shown_path(known_run(None, sweeps=True).path)
    raise ConfigError(f"RUN: say which. The latest is {run}: `clusterdp {verb} {run}{rest}`")


def config_path(word: str) -> str:
    """Returns the path of a config file. Outside a checkout, `configs/digits.yaml` means the file in the package."""
    if word == "-":
        raise ConfigError("-: a config is not read from the standard input. Name a YAML file.")
    if word.endswith((".py", ".sh", ".ipynb")):
        raise ConfigError(f"{word}: is a program. Write a YAML file with `command: python {word}`, and name that file.")
    is_ours = word.startswith("configs/") or not ("/" in word or word.endswith((".yaml", ".yml")))
    if not is_ours or os.path.exists(word):  # no pathlib: its import takes 10 ms
        return word
    from clusterdp.submission.render.shipped_files import find_config

    return str(find_config(word))
