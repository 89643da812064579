"""Source: one Python file, with facts from its syntax tree."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Function = Definition | ast.Lambda


@dataclass
class Source:
    file: Path
    lines: list[str]
    nodes: list[ast.AST] = field(default_factory=list)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    functions: dict[str, list[Definition]] = field(default_factory=dict)  # bare name -> functions and methods
    values: dict[str, list[ast.expr]] = field(default_factory=dict)  # name or attribute -> its assigned values
    aliases: dict[str, str] = field(default_factory=dict)  # name -> full name: `dist` -> `torch.distributed`
    imported: list[ast.Import | ast.ImportFrom] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path, text: str) -> Source:
        """Parses the text of a Python file. Raises SyntaxError or ValueError if the file is not valid Python for this
        interpreter, RecursionError or MemoryError if its expressions are nested too deeply."""
        source = cls(file, text.split("\n"))  # not splitlines(), which also splits at form feeds
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parsing warns of "\d" in a string
            tree = ast.parse(text, filename=str(file))
        for node in ast.walk(tree):
            source.nodes.append(node)
            for child in ast.iter_child_nodes(node):
                source.parents[child] = node
            source._note(node)
        return source

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self.calls.append(node)
        elif isinstance(node, Definition):
            self.functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._note_value(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            self._note_value(node.target, node.value)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._note_value(node.optional_vars, node.context_expr)
        elif isinstance(node, ast.Import):
            self.imported.append(node)
            for alias in node.names:
                top = alias.name.split(".")[0]
                self.aliases[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            self.imported.append(node)
            for alias in node.names:
                self.aliases[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
                if alias.name == "*" and node.module == "signal":
                    self.aliases["signal"] = "signal.signal"

    def _note_value(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value] * len(target.elts)
            for each, of_each in zip(target.elts, values, strict=False):
                self._note_value(each, of_each)
        if name := last_name(target):
            self.values.setdefault(name, []).append(value)

    def place(self, node: ast.AST) -> CodePlace:
        line = getattr(node, "lineno", 1)
        return CodePlace(self.file, line, self.lines[line - 1].strip() if line <= len(self.lines) else "")

    def name(self, node: ast.AST) -> str:
        """Returns the full name of a called function: `torch.distributed.barrier` for `dist.barrier`; `?.save` for a
        method of an unknown object."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        first = self.aliases.get(node.id, node.id) if isinstance(node, ast.Name) else "?"
        return ".".join([first, *reversed(attributes)])

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function_of(self, node: ast.AST) -> Definition | None:
        """Returns the innermost function that contains the node."""
        return next((each for each in self.above(node) if isinstance(each, Definition)), None)


def last_name(node: ast.AST) -> str:
    """Returns the last name in an expression: `x` for `x`, `self.x`, `args.x` and `d["x"]`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return ""


def argument(call: ast.Call, position: int, *keywords: str) -> ast.expr | None:
    """Returns the argument that a call passes at `position`, or with one of `keywords`."""
    given = next((each.value for each in call.keywords if each.arg in keywords), None)
    if given is None and position < len(call.args) and not any(isinstance(a, ast.Starred) for a in call.args):
        return call.args[position]
    return given


def parameters(function: Definition) -> list[str]:
    """Returns the names of the parameters without `*args` and `**kwargs`, because these stand for several values."""
    arguments = function.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def passed(call: ast.Call, function: Definition, of_class: ast.AST | None, name: str) -> ast.expr | None:
    """Returns the value that a call passes for the parameter `name`. None for the object of a method, for `*args`, and
    if the call uses the default. `of_class` is the node that contains the function's definition."""
    by_place = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if isinstance(of_class, ast.ClassDef) and _binds_first(call, function, of_class):
        by_place = by_place[1:]
    return argument(call, by_place.index(name) if name in by_place else len(call.args), name)


def _binds_first(call: ast.Call, function: Definition, of_class: ast.ClassDef) -> bool:
    """Returns whether the object is passed implicitly. False for a static method, and for a method that is called by
    its class: Trainer.save(trainer, path)."""
    decorators = {last_name(each) for each in function.decorator_list}
    if "staticmethod" in decorators:
        return False
    by_class = isinstance(call.func, ast.Attribute) and last_name(call.func.value) == of_class.name
    return not by_class or "classmethod" in decorators


@dataclass(frozen=True, order=True)
class CodePlace:
    """A line of a file. `line` counts from 1; `text` is the line's text, stripped."""

    file: Path
    line: int
    text: str


@dataclass(frozen=True, order=True)
class ShellCall(CodePlace):
    """A line in which a shell starts the program. With `is_last`, the shell does nothing after the program, and could
    use exec."""

    is_last: bool = True


@dataclass
class ProgramText:
    """The facts about the program's own files. A list is empty if the program has no such line.

    A program that is not `complete` may have unread lines: its empty lists prove nothing. The reason may be: a file
    that cannot be read or parsed, too many files, an import by a computed name, or an import of an unknown library.
    """

    files: list[Path] = field(default_factory=list)
    # Files that are imported only in a function, or only below `try:` or `if`
    optional: set[Path] = field(default_factory=set)
    unparsed: list[CodePlace] = field(default_factory=list)  # not valid Python; `text` is the parser's error
    complete: bool = True
    libraries: set[str] = field(default_factory=set)  # top names of imported modules from other folders

    handled: dict[str, list[CodePlace]] = field(default_factory=dict)  # `SIGTERM` -> places that set its handler
    collective_in_handler: list[CodePlace] = field(default_factory=list)
    exits_zero_in_handler: list[CodePlace] = field(default_factory=list)

    shells: list[ShellCall] = field(default_factory=list)  # calls in a shell script that has no exec and no trap

    trains: list[CodePlace] = field(default_factory=list)  # calls of torch's backward()
    # Uses of a process group, or of a variable that differs between ranks: RANK, WORLD_SIZE, SLURM_PROCID, --local_rank
    knows_ranks: list[CodePlace] = field(default_factory=list)

    saves: list[CodePlace] = field(default_factory=list)
    saves_in_place: list[CodePlace] = field(default_factory=list)  # saves under the final name, without a rename

    fixed_ports: list[CodePlace] = field(default_factory=list)

    @property
    def handles_term(self) -> list[CodePlace]:
        return self.handled.get("SIGTERM", [])
