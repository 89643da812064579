"""`clusterdp show`: prints the values that a config sets, resolved, as YAML. Each line has the source of its value."""

from __future__ import annotations

from clusterdp import config as config_module
from clusterdp.config import Loaded

COLUMN = 48


def annotated(loaded: Loaded) -> str:
    """Returns the values that are set, as valid YAML, with the source of each value as a comment."""
    sources = loaded.sources
    path: list[tuple[int, str]] = []  # (indentation, key) of each enclosing section
    lines, is_set = [], False
    for line in config_module.dump(loaded.config).splitlines():
        indent = len(line) - len(line.lstrip())
        key, colon, _ = line.strip().partition(":")
        if not colon or key.startswith("- "):  # a line within a list or a long string
            lines += [line] if is_set else []
            continue
        key = key.strip("'")  # YAML writes the key `on` with quotes
        path = [(depth, above) for depth, above in path if depth < indent] + [(indent, key)]
        names = [name for _, name in path]
        dotted = ".".join(names)
        above = {".".join(names[:count]) for count in range(1, len(names))}
        is_set = dotted in sources or bool(above & sources.keys()) or any(s.startswith(f"{dotted}.") for s in sources)
        source = f" # {sources[dotted]}" if dotted in sources else ""
        lines += [f"{line:<{COLUMN}}{source}" if source else line] if is_set else []
    return "\n".join([*lines, "# All else has its default: `clusterdp show --explain` has each key."]) + "\n"
