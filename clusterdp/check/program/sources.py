"""The Python files of a program: the one that is run, and those of its folder that it imports, one after the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from clusterdp.check.program.command_words import module_file
from clusterdp.check.program.source import Definition, Source, last_name
from clusterdp.plainfile import read_plain

MOST_FILES, MOST_BYTES = 80, 800_000  # to parse that much takes about half a second
OURS = "clusterdp"  # is no part of the program, wherever it lies


@dataclass
class Sources:
    each: list[Source] = field(default_factory=list)
    complete: bool = True
    libraries: set[str] = field(default_factory=set)

    def functions(self, name: str, near: Source) -> list[tuple[Source, Definition]]:
        """Those of this bare name, of the file `near` if it has any."""
        own = [(near, function) for function in near.functions.get(name, [])]
        return own or [(source, function) for source in self.each for function in source.functions.get(name, [])]

    def calls_of(self, name: str) -> list[tuple[Source, ast.Call]]:
        return self._calls.get(name, [])

    @cached_property
    def _calls(self) -> dict[str, list[tuple[Source, ast.Call]]]:
        found: dict[str, list[tuple[Source, ast.Call]]] = {}
        for source in self.each:
            for call in source.calls:
                found.setdefault(last_name(call.func), []).append((source, call))
        return found


def sources_from(first: Path, folder: Path) -> Sources:
    """folder: the one that the program is started in."""
    found, todo, seen, size = Sources(), [first], {first.resolve()}, 0
    roots = [first.parent, folder, folder / "src"]
    while todo:
        path = todo.pop(0)
        try:
            text = read_plain(path).decode()
            size += len(text)
            if len(found.each) == MOST_FILES or size > MOST_BYTES:
                found.complete = False
                break
            source = Source.read(path, text)
        except (OSError, SyntaxError, ValueError, RecursionError):
            found.complete = False
            continue
        found.each.append(source)
        found.complete &= not any(source.name(call.func).endswith("import_module") for call in source.calls)
        for module in _imported(source, roots):
            file = module_file(module, roots) if module.split(".")[0] != OURS else None
            if file is None:
                found.libraries.add(module.split(".")[0])
            elif file.resolve() not in seen:
                seen.add(file.resolve())
                todo.append(file)
    return found


def _imported(source: Source, roots: list[Path]) -> Iterator[str]:
    """The modules that a file imports, by their full names. Of `from a import b`, b may be a module of its own."""
    for node in source.imported:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = node.module or ""
            if node.level:
                package = _package_of(source.file, roots)
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            names = [base] if base else []
            names += [full for alias in node.names if module_file(full := f"{base}.{alias.name}".strip("."), roots)]
        for name in names:
            parts = name.split(".")
            yield name
            yield from (".".join(parts[:i]) for i in range(1, len(parts)))


def _package_of(file: Path, roots: list[Path]) -> list[str]:
    """Of the last of the roots that it lies below: `python pkg/train.py` has no package, but what pkg imports has."""
    for root in reversed(roots):
        if file.is_relative_to(root):
            return list(file.relative_to(root).parent.parts)
    return []
