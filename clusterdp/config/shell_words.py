"""Whether the text of `command:` holds what only a shell acts on: no shell reads it, and the program would get the
characters."""

from __future__ import annotations

import re
import shlex

# `${...}` is OmegaConf's, with at most one more inside of it; what it stands for may be any text.
INTERPOLATION = r"\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
EXPANDED = r"`|\$(?:[A-Za-z_]\w*|[\d(\[@*#?!$-])"  # in double quotes, too
HIDDEN = re.compile(rf"(?P<kept>{INTERPOLATION}|\\.|'[^']*')|\"(?P<quoted>(?:\\.|[^\"\\])*)\"", re.DOTALL)
IN_QUOTES = re.compile(rf"{INTERPOLATION}|\\.|(?P<acts>{EXPANDED})|.", re.DOTALL)
SET_IN_FRONT = re.compile(r"\s*[A-Za-z_]\w*\+?=\S*")
ACTS = re.compile(
    r"(?P<home>(?<!\S)(?:[A-Za-z_]\w*=)?~(?=[/\s]|$))"
    r"|(?P<comment>(?<!\S)\#.*)"
    r"|(?P<line>(?<=\S)\s*\n\s*(?=[^\s-]).*)"  # options on lines of their own belong to the program of the first
    rf"|(?P<value>{EXPANDED}|\$['\"])"
    r"|(?P<operator>&&|\|\||[0-9]?>>|<<|[|&;<>])"
)
TO_BASH = "Put the lines below script:, which bash reads"


def for_a_shell(text: str) -> tuple[str, str] | None:
    """(problem, remedy) of the first such thing; None if there is none. text: as it stands in the config.

    Quotes and backslashes protect, as they do in bash. Patterns (`*`, `?`, `[x]`, `{a,b}`) are not judged: programs
    expand them, too, and a shell leaves them where no file matches.
    """
    try:
        words = shlex.split(text)
    except ValueError:  # an open quote, which is refused with words of its own
        return None
    hidden = HIDDEN.sub(_hide, text)
    if SET_IN_FRONT.match(hidden):
        name, _, value = words[0].partition("=")
        more = words[1] if len(words) > 1 else "..."
        remedy = f"Write launch.env: {{{name.rstrip('+')}: {value!r}}}, and let the command begin with {more}"
        return f"{words[0]!r} stands in front, which only a shell takes for a variable", remedy
    found = ACTS.search(hidden)
    if found is None:
        return None
    seen = text[slice(*found.span())].strip()
    shown, kind = seen if len(seen) <= 60 else f"{seen[:57]}...", found.lastgroup
    if kind == "line":
        remedy = f"{TO_BASH}; if it is all one command, write `command: >`"
        return f"{shown!r} is a line of its own, and would be words of the program above it", remedy
    if kind == "comment":
        return f"{shown!r} is a comment to a shell alone: a program would get it", "Leave it out, or quote it"
    if kind == "home":
        return f"{shown!r} is for a shell, and none reads it", f"Write {seen[:-1]}${{oc.env:HOME}}, or the path"
    remedy = f"{TO_BASH}; if the program is to get it, put it in single quotes"
    if re.fullmatch(r"\$[A-Za-z_]\w*", seen):
        remedy = f"Write ${{oc.env:{seen[1:]}}}, which is filled in at submit. Or {remedy[0].lower()}{remedy[1:]}"
    return f"{shown!r} is for a shell, and none reads it", remedy


def _hide(found: re.Match[str]) -> str:
    """As many dots, but for the quote itself, and for what a shell expands in double quotes. A line that goes on has
    blanks there."""
    if found[0] == "\\\n":
        return "  "
    if found["quoted"] is not None:
        return '"' + IN_QUOTES.sub(lambda each: each["acts"] or "." * len(each[0]), found["quoted"]) + "."
    return (found[0][0] if found[0][0] == "'" else ".") + "." * (len(found[0]) - 1)
