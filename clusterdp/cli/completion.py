"""Completion on TAB in bash, zsh and fish: verbs, options, config keys and some of their values, runs, files.

The library argcomplete provides the completion: at each TAB the shell runs clusterdp, with the line so far in an
environment variable. The functions of this module must not print, and must not wait long for a file system or a
controller that does not answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterdp.cli.parser import CliParser

if TYPE_CHECKING:
    from clusterdp.operate.record.run_history import RunHistory

MOST_RUNS = 50  # the largest number of runs that are offered, the newest first


def script(shell: str) -> str:
    """Returns the shell code that enables completion."""
    from argcomplete.shell_integration import shellcode

    return shellcode(["clusterdp"], shell=shell)


def answer(top: CliParser) -> None:
    """Prints the candidates for the word on the line, and ends the process."""
    import argcomplete
    from argcomplete.completers import FilesCompleter

    _attach(top)
    argcomplete.autocomplete(top, always_complete_options=False, default_completer=FilesCompleter())


def _attach(parser: argparse.ArgumentParser) -> None:
    """Gives each argument the function that yields its candidates, found by the argument's name in --help."""
    from argcomplete.completers import DirectoriesCompleter

    known: dict[str, Any] = {
        "CFG.yaml": _config_files,
        "key=value": _words,
        "KEY": _keys,
        "RUN": _runs,
        "RUN_OR_URL": _runs,
        "NAME": _examples,
        "STATES": _states,
        "METRIC": _metrics,
        "A": _attempts,
        "KEY=VALUES": _swept,
        "DIR": DirectoriesCompleter(),
    }
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                _attach(sub)
        elif isinstance(action.metavar, str) and action.metavar in known:
            action.completer = known[action.metavar]  # type: ignore[attr-defined]


def _runs(prefix: str, **_: Any) -> Iterator[str]:
    from itertools import islice

    from clusterdp.operate.find.find_run import known_runs
    from clusterdp.operate.output.formatting import shown_path

    return islice((name for name in map(shown_path, known_runs()) if name.startswith(prefix)), MOST_RUNS)


def _metrics(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Returns the metrics of the run that the line names."""
    history = _history(parsed_args)
    return list(history.metrics) if history else []


def _attempts(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    history = _history(parsed_args)
    return [*(str(attempt.number) for attempt in history.attempts), "all"] if history else []


def _history(parsed_args: argparse.Namespace) -> RunHistory | None:
    from clusterdp.errors import RunError
    from clusterdp.operate.find.find_run import find_run
    from clusterdp.operate.record.run_history import read_history

    word = getattr(parsed_args, "run", None)
    if not word:  # find_run() may print when it looks for the latest run
        return None
    try:
        return read_history(find_run(word))
    except (RunError, OSError):
        return None


def _swept(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Returns the keys to sweep, such as `params.lr=`. Only params are offered, because they are swept most often."""
    return [f"params.{name}=" for name in _params(getattr(parsed_args, "config", None))]


def _states(**_: Any) -> list[str]:
    from clusterdp.operate.record.run_state import RunState

    return [state.value for state in RunState]


def _examples(**_: Any) -> list[str]:
    from clusterdp.submission.render.shipped_files import shipped_folder

    return [path.stem for path in shipped_folder("configs").glob("*.yaml")]


def _config_files(prefix: str, **more: Any) -> list[str]:
    from argcomplete.completers import FilesCompleter

    files = list(FilesCompleter(("yaml", "yml"))(prefix, **more))
    return files or [f"configs/{name}.yaml" for name in _examples()]


def _keys(prefix: str, **_: Any) -> list[str]:
    """Returns the keys of a section if its name is complete, else only the names of sections, because two hundred keys
    are too many."""
    from clusterdp.config.explain import explanations

    keys = [one.key for one in explanations() if one.key.startswith(prefix)]
    at = len(prefix.rpartition(".")[0].split(".")) if "." in prefix else 0
    heads = {".".join(key.split(".")[: at + 1]) for key in keys}
    # If only one section matches, the keys of this section are returned at once, because a shell puts a space after a
    # single candidate.
    return keys if len(heads) == 1 else sorted(head if head in keys else f"{head}." for head in heads)


def _words(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Returns candidates such as `resources.nodes=` and the config's own `params.lr=`. After the = of some keys, the
    values of the key are returned."""
    if getattr(parsed_args, "explain", None) is not None:
        return []  # `show --explain KEY` takes keys without values
    key, equals, _value = prefix.partition("=")
    if equals:
        return [f"{key}={value}" for value in _values(key)]
    keys = [name if name.endswith(".") else f"{name}=" for name in _keys(prefix) if name not in ("params", "defaults")]
    return keys + [f"params.{name}=" for name in _params(getattr(parsed_args, "config", None))]


def _values(key: str) -> list[str]:
    from clusterdp.config.explain import explanations

    if key == "resources.partition":
        from clusterdp.errors import SlurmError
        from clusterdp.slurm.commands import node_groups

        try:
            return sorted({group.partition for group in node_groups(timeout_s=2.0)})
        except SlurmError:
            return []
    default = next((one.default for one in explanations() if one.key == key), None)
    return ["true", "false"] if isinstance(default, bool) else []


def _params(config: str | None) -> list[str]:
    """Returns the names below `params:` in the config file that the line names."""
    import yaml

    try:
        values = yaml.safe_load(Path(config or "").read_text())["params"]
        return [str(name) for name in values]
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return []
