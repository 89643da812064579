"""PathText: how much of the name of a file stands in the text, from its beginning."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from clusterdp.check.program.source import MOST_HOPS, Definition, Source, default_of, last_name, parameters, passed
from clusterdp.check.program.sources import Sources

TEMPORARY = frozenset({"tempfile.gettempdir", "tempfile.mkdtemp"})
JOINING = frozenset({"pathlib.Path", "str", "os.path.expanduser", "os.path.abspath", "os.path.join"})


@dataclass(frozen=True)
class PathText:
    """Names are those of `source`. Each step from a name to its value takes one of the `hops`."""

    sources: Sources
    source: Source
    hops: int = MOST_HOPS

    def written_out(self, node: ast.expr) -> tuple[str, bool]:
        """(as much of the path as stands in the text from its beginning, whether that is all of it)"""
        if isinstance(node, ast.Constant):
            return (node.value, True) if isinstance(node.value, str) else ("", False)
        if isinstance(node, ast.JoinedStr):
            return self._joined(
                [each.value if isinstance(each, ast.FormattedValue) else each for each in node.values], ""
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Add)):
            return self._joined([node.left, node.right], "/" if isinstance(node.op, ast.Div) else "")
        if _is_temporary(node, self.source):
            return "$TMPDIR", True
        if isinstance(node, ast.Call):
            return self._joined(node.args, "/") if self.source.name(node.func) in JOINING else ("", False)
        return self._of_name(node) if self.hops and isinstance(node, (ast.Name, ast.Attribute)) else ("", False)

    def _joined(self, parts: Sequence[ast.expr], separator: str) -> tuple[str, bool]:
        known: list[str] = []
        for part in parts:
            text, whole = self.written_out(part)
            known += [text] if text else []
            if not whole:
                return separator.join(known) + (separator if known and not text else ""), False
        return separator.join(known), True

    def _of_name(self, node: ast.Name | ast.Attribute) -> tuple[str, bool]:
        """What is assigned to it once, or what a parameter is: its default, or what the one call passes."""
        if isinstance(node, ast.Attribute):
            of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            values = self.source.attributes.get(node.attr, []) if of_self else []
        else:
            values = self.source.names.get(node.id, [])
            function = self.source.function_of(node)
            if not values and function is not None and node.id in parameters(function):
                return self._of_parameter(node.id, function)
        return self._next(values[0], self.source) if len(values) == 1 else ("", False)

    def _of_parameter(self, name: str, function: Definition) -> tuple[str, bool]:
        of_class = self.source.parents.get(function)
        called_as = function.name
        if isinstance(of_class, ast.ClassDef) and function.name == "__init__":
            called_as = of_class.name
        callers = self.sources.callers(called_as)
        given = [
            (value, where) for where, call in callers if (value := passed(call, function, of_class, name)) is not None
        ]
        default = default_of(function, name)
        if not given and default is not None:
            return self._next(default, self.source)
        return self._next(*given[0]) if len(given) == 1 else ("", False)

    def _next(self, node: ast.expr, source: Source) -> tuple[str, bool]:
        return PathText(self.sources, source, self.hops - 1).written_out(node)


def _is_temporary(node: ast.expr, source: Source) -> bool:
    """`tempfile.gettempdir()`, `os.environ["TMPDIR"]`, `os.getenv("SLURM_TMPDIR")`: a folder of this node alone."""
    if isinstance(node, ast.Subscript):
        return source.name(node.value) == "os.environ" and last_name(node).endswith("TMPDIR")
    if not isinstance(node, ast.Call):
        return False
    asked = node.args[0] if node.args and source.name(node.func) in ("os.environ.get", "os.getenv") else None
    of_variable = isinstance(asked, ast.Constant) and str(asked.value).endswith("TMPDIR")
    return of_variable or source.name(node.func) in TEMPORARY
