"""`clusterdp show`: prints the resolved config as YAML. Each line has the source of its value."""

from __future__ import annotations

from clusterdp import config as config_module
from clusterdp.config import Loaded

COLUMN = 48


def annotated(loaded: Loaded) -> str:
    """Returns the config as valid YAML, with the source of each value as a comment."""
    path: list[tuple[int, str]] = []  # (indentation, key) of each enclosing section
    lines = []
    for line in config_module.dump(loaded.config).splitlines():
        indent = len(line) - len(line.lstrip())
        key, colon, value = line.strip().partition(":")
        if not colon or key.startswith("- "):  # a line within a list or a long string
            lines.append(line)
            continue
        key = key.strip("'")  # YAML writes the key `on` with quotes
        path = [(depth, above) for depth, above in path if depth < indent] + [(indent, key)]
        dotted = ".".join(name for _, name in path)
        inner = any(source.startswith(dotted + ".") for source in loaded.sources)
        source = loaded.sources.get(dotted, "" if inner or not value else "default")
        lines.append(f"{line:<{COLUMN}} # {source}" if source else line)
    return "\n".join(lines) + "\n"
