"""`clusterdp show`: the resolved config as YAML, each line with the source of its value."""

from __future__ import annotations

from clusterdp import config as config_module
from clusterdp.config import Loaded

COLUMN = 48


def annotated(loaded: Loaded) -> str:
    """Returns valid YAML with the sources as comments."""
    path: list[tuple[int, str]] = []  # (indentation, key) of the lines above
    lines = []
    for line in config_module.dump(loaded.config).splitlines():
        indent = len(line) - len(line.lstrip())
        key, colon, value = line.strip().partition(":")
        if not colon or key.startswith("- "):  # the middle of a list or of a long string
            lines.append(line)
            continue
        key = key.strip("'")  # YAML quotes `on`
        path = [(depth, above) for depth, above in path if depth < indent] + [(indent, key)]
        dotted = ".".join(name for _, name in path)
        inner = any(source.startswith(dotted + ".") for source in loaded.sources)
        source = loaded.sources.get(dotted, "" if inner or not value else "default")
        lines.append(f"{line:<{COLUMN}} # {source}" if source else line)
    return "\n".join(lines) + "\n"
