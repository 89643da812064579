"""CliParser: an argparse parser whose errors are one line with the mistake and the remedy, like all errors of
clusterdp."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from clusterdp.wording import did_you_mean


class CliParser(argparse.ArgumentParser):
    """A parser for clusterdp's command line. `example` is a whole command line, which --help and error messages
    print."""

    def __init__(self, *args: Any, example: str = "", **more: Any):
        more.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        if example:
            more.setdefault("epilog", f"example: {example}")
        super().__init__(*args, **more)
        self.example = example

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {self._in_our_words(message)}\n")

    def _in_our_words(self, message: str) -> str:
        help_ = f"`{self.prog} --help` lists all."
        if found := re.match(r"argument VERB: invalid choice: '(.*?)' \(choose from (.*)\)", message):
            return f"{found[1]}: there is no such verb. {did_you_mean(found[1], _words(found[2])) or help_}"
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
        first = words[0]
        options = [name for action in self._actions for name in action.option_strings]
        if guess := did_you_mean(first.partition("=")[0], options):
            return f"{first}: there is no such option. {guess}"
        from clusterdp.config.explain import key_named

        if first.startswith("--") and (key := key_named(first[2:].partition("=")[0].replace("-", "_"))):
            value = first.partition("=")[2] or (words[1] if len(words) > 1 else "...")
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
