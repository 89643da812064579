"""scontrol, which shows and changes jobs, nodes and partitions.

Without a command, scontrol reads commands from stdin.
"""

import os
import sys

from client import run, write  # type: ignore[import-not-found]

MODES = {"all": "-a", "details": "-d", "hide": "--hide", "oneliner": "-o", "quiet": "-Q", "verbose": "-v"}


def split(line: str) -> "list[str]":
    """Splits a line into words at blanks outside quotes, and removes the quotes."""
    words, quote, word = [], "", ""
    for letter in line.strip() + " ":
        if letter == quote:
            quote = ""
        elif not quote and letter in "'\"":
            quote = letter
        elif quote or not letter.isspace():
            word += letter
        elif word:
            words.append(word)
            word = ""
    return words


def interactive(options: "list[str]") -> int:
    """Reads commands from stdin and runs them. Returns the exit status: 1 if any command failed."""
    own, code, echo = sys.argv[:3], 0, not os.isatty(0)
    while True:
        write(1, b"scontrol: ")
        line = sys.stdin.readline()
        words = split(line)
        if echo or not line:
            write(1, (line.rstrip("\n") + "\n").encode("utf-8", "surrogateescape"))
        if not line or words[:1] in (["quit"], ["exit"]):
            return code
        if words and words[0] in MODES and len(words) == 1:
            options = [*options, MODES[words[0]]]
        elif words:
            child = os.fork()
            if not child:
                sys.argv = [*own, *options, *words]
                run("scontrol")
            code = (os.waitpid(child, 0)[1] and 1) or code


given = sys.argv[3:]
if all(word in ("-o", "-d", "-a", "-Q", "-v", "--oneliner", "--details", "--all", "--quiet") for word in given):
    sys.exit(interactive(given))
run("scontrol")
