"""Finds shell syntax in the text of `command:`: because no shell reads the command, the program would get these
characters."""

from __future__ import annotations

import re
import shlex

# An interpolation of OmegaConf, `${...}`, with at most one other interpolation inside. Its value may be any text.
INTERPOLATION = r"\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
EXPANDED = r"`|\$(?:[A-Za-z_]\w*|[\d(\[@*#?!$-])"  # a shell expands these even in double quotes
HIDDEN = re.compile(rf"(?P<kept>{INTERPOLATION}|\\.|'[^']*')|\"(?P<quoted>(?:\\.|[^\"\\])*)\"", re.DOTALL)
IN_QUOTES = re.compile(rf"{INTERPOLATION}|\\.|(?P<acts>{EXPANDED})|.", re.DOTALL)
SET_IN_FRONT = re.compile(r"\s*[A-Za-z_]\w*\+?=\S*")
ACTS = re.compile(
    r"(?P<home>(?<!\S)(?:[A-Za-z_]\w*=)?~(?=[/\s]|$))"
    r"|(?P<comment>(?<!\S)\#.*)"
    r"|(?P<line>(?<=\S)\s*\n\s*(?=[^\s-]).*)"  # not if the line begins with an option
    rf"|(?P<value>{EXPANDED}|\$['\"])"
    r"|(?P<operator>&&|\|\||[0-9]?>>|<<|[|&;<>])"
)
TO_BASH = "Put the lines below script:, which bash reads"


def for_a_shell(text: str) -> tuple[str, str] | None:
    """Returns (problem, remedy) for the first shell syntax; None if the command has no shell syntax. text: the command
    as written in the config.

    Text after a backslash or within quotes is no shell syntax, as in bash. Patterns (`*`, `?`, `[x]`, `{a,b}`) are not
    judged, because programs expand them, too, and a shell leaves a pattern without a matching file as it is.
    """
    try:
        words = shlex.split(text)
    except ValueError:  # another check refuses a quote that is not closed
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
    """Replaces quoted text by dots, so that shell syntax is found only outside. The opening quote stays, and text that
    a shell expands in double quotes. The end of a continued line becomes blanks."""
    if found[0] == "\\\n":
        return "  "
    if found["quoted"] is not None:
        return '"' + IN_QUOTES.sub(lambda each: each["acts"] or "." * len(each[0]), found["quoted"]) + "."
    return (found[0][0] if found[0][0] == "'" else ".") + "." * (len(found[0]) - 1)
