"""Parses command lines and #SBATCH lines like getopt_long, with its error texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...core.error_texts import Refusal

NO_HINT = ("sacct", "sstat")
NONE, REQUIRED, OPTIONAL = "", "=", "?"


@dataclass(frozen=True)
class Option:
    name: str
    short: str = ""
    takes: str = REQUIRED
    means: str = ""  # the name under which the commands look up the option, if different


def table(text: str) -> list[Option]:
    """Returns the options from words like `nodes,N=`, `hold,H`, `exclusive?`, `users:user,u=`: name, after a colon the
    name under which the commands look up the option, after a comma the short letter, and at the end = for a required or
    ? for an optional value.
    """
    options = []
    for word in text.split():
        takes = word[-1] if word[-1] in "=?" else NONE
        name, _, short = word.rstrip("=?").partition(",")
        name, _, means = name.partition(":")
        options.append(Option(name, short, takes, means or name))
    return options


class GetoptParser:
    """Parses command lines. `parse` returns (name, value) pairs in order, and the words that are not options."""

    def __init__(self, command: str, options: Iterable[Option], exit_code: int = 1):
        self._command, self._exit_code = command, exit_code
        options = list(options)
        self._long = {option.name: option for option in options}
        self._short = {option.short: option for option in options if option.short}

    def parse(self, words: Sequence[str], *, permute: bool) -> tuple[list[tuple[str, str]], list[str]]:
        """Parses the words of a command line. With `permute`, options may follow other words (squeue, scancel). Without
        `permute`, the first word that is not an option ends the options (sbatch).
        """
        found: list[tuple[str, str]] = []
        rest: list[str] = []
        queue = list(words)
        while queue:
            word = queue.pop(0)
            if word == "--":
                return found, rest + queue
            if word.startswith("--"):
                found.append(self._take_long(word, queue))
            elif word.startswith("-") and word != "-":
                found += self._take_short(word[1:], queue)
            elif permute:
                rest.append(word)
            else:
                return found, [word, *queue]
        return found, rest

    def _take_long(self, word: str, queue: list[str]) -> tuple[str, str]:
        name, equals, value = word[2:].partition("=")
        option = self._long.get(name)
        if not option:
            matches = [o for o in self._long.values() if o.name.startswith(name)]
            if len({(o.takes, o.short, o.means or o.name) for o in matches}) > 1:
                names = " ".join(f"'--{name}'" for name in sorted(o.name for o in matches))
                raise self._refusal(f"option '{word}' is ambiguous; possibilities: {names}")
            if not matches or not name:
                raise self._refusal(f"unrecognized option '{word}'")
            option = matches[0]
        if equals and option.takes == NONE:
            raise self._refusal(f"option '--{option.name}' doesn't allow an argument")
        if not equals and option.takes == REQUIRED:
            if not queue:
                raise self._refusal(f"option '--{option.name}' requires an argument")
            value = queue.pop(0)
        return option.means or option.name, value

    def _take_short(self, letters: str, queue: list[str]) -> list[tuple[str, str]]:
        found = []
        while letters:
            letter, letters = letters[0], letters[1:]
            option = self._short.get(letter)
            if not option:
                raise self._refusal(f"invalid option -- '{letter}'")
            name = option.means or option.name
            if option.takes == NONE:
                found.append((name, ""))
                continue
            if not letters and option.takes == REQUIRED:
                if not queue:
                    raise self._refusal(f"option requires an argument -- '{letter}'")
                letters = queue.pop(0)
            found.append((name, letters))
            break
        return found

    def _refusal(self, what: str) -> Refusal:
        hint = f'\nTry "{self._command} --help" for more information' if self._command not in NO_HINT else ""
        return Refusal(f"{self._command}: {what}{hint}", self._exit_code)
