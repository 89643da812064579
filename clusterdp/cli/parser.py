"""CliParser: an argparse parser whose errors are one line with the mistake and the remedy, like all errors of
clusterdp."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

from clusterdp.operate.output.terminal import terminal_columns
from clusterdp.wording import did_you_mean

# Words of other tools for a verb, which is the first of its line.
FOREIGN = """submit run start launch sbatch train execute local demo simulate dryrun dry-run render
list ps jobs squeue queue ls history sacct runs
top htop k9s tui monitor
status stat state info
logs log tail cat output head
watch follow attach
cancel kill scancel abort terminate
stop pause suspend
resume restart retry continue requeue rerun
rm remove delete del clean purge
check test validate lint doctor preflight
show config print explain
report web ui dashboard html
init new create setup
diff compare
checkpoint checkpoints ckpt verify export prune
--help help man
--version version"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal. argparse makes a formatter for each argument, and would ask shutil for the width."""

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **{"width": _width(), **more})


@cache
def _width() -> int:
    return terminal_columns() - 2


class CliParser(argparse.ArgumentParser):
    """A parser for clusterdp's command line. `example` is a whole command line, which --help and error messages
    print."""

    def __init__(self, *args: Any, example: str = "", **more: Any):
        more.setdefault("formatter_class", _Formatter)
        if example:
            more.setdefault("epilog", f"example: {example}")
        super().__init__(*args, **more)
        self.example = example

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {self._in_our_words(message)}\n")

    def _in_our_words(self, message: str) -> str:
        help_ = f"`{self.prog} --help` lists all."
        if found := re.match(r"argument VERB: invalid choice: '(.*?)' \(choose from (.*)\)", message):
            ours = [line.split()[0] for line in FOREIGN.splitlines() if found[1] in line.split()]
            remedy = f"Write `{self.prog} {ours[0]}`." if ours else did_you_mean(found[1], _words(found[2]), help_)
            return f"{found[1]}: there is no such verb. {remedy}"
        if found := re.match(r"argument (\S+?): invalid choice: '(.*?)' \(choose from (.*)\)", message):
            return f"{found[1]}: {found[2]!r} is none of {', '.join(_words(found[3]))}. Write one of them."
        if found := re.match(r"argument (\S+?): invalid (\w+) value: (.*)", message):
            kind = {"int": "a whole number", "float": "a number"}.get(found[2], f"of type {found[2]}")
            return f"{found[1]}: {found[3]} is not {kind}. Write one."
        if found := re.match(r"argument (\S+): expected (?:one|at least one) argument", message):
            return f"{found[1]}: has no value. Write one after it."
        if found := re.match(r"the following arguments are required: (.*)", message):
            return f"{_missing(found[1].split(', '))} missing. Write e.g. {self.example or f'`{self.prog} --help`'}."
        if found := re.match(r"unrecognized arguments: (.*)", message):
            return self._unrecognized(found[1].split())
        return f"{message}. {help_}"

    def _unrecognized(self, words: Sequence[str]) -> str:
        first, _, value = words[0].partition("=")
        name = first.lstrip("-").replace("-", "_")
        own = [action for action in self._actions if action.dest != "help"]
        options = [option for action in own for option in action.option_strings]
        near = [option for option in options if option.startswith(f"-{first}")]  # -c for --cluster
        near += [action.option_strings[0] for action in own if action.option_strings and action.dest == name]
        near += [f"{action.option_strings[0]} {name}" for action in own if name in (action.choices or ())]
        if guess := f"Did you mean {near[0]}?" if near else did_you_mean(first, options):
            return f"{first}: there is no such option. {guess}"
        from clusterdp.config.explain import explanations

        keys = [each for each in explanations() if name in (each.key, each.key.rpartition(".")[2])]
        if first.startswith("--") and (keys or name.startswith("params.")):
            value = value or (words[1] if len(words) > 1 else "...")
            value = f"[{value}]" if keys and keys[0].kind.startswith("list") else value
            key = keys[0].key if keys else name
            return f"{first}: there is no such option. Values of the config are words: {key}={value}."
        return f"{first}: is not expected here. `{self.prog} --help` lists what is."


def _missing(names: Sequence[str]) -> str:
    """Returns the missing arguments with a verb, for example `RUN is`, `RUN twice is` or `RUN, METRIC are`."""
    once = list(dict.fromkeys(names))
    if len(once) > 1:
        return f"{', '.join(once)} are"
    return f"{once[0]} is" if len(names) == 1 else f"{once[0]} twice is"


def _words(listed: str) -> list[str]:
    """Returns the words in argparse's list of choices: 'a', 'b' in Python 3.11, or a, b in 3.12."""
    return re.findall(r"[\w-]+", listed)
