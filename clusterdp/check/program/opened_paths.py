"""Finds the files that a program opens by names that its text contains."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterdp.check.program.source import (
    MOST_HOPS,
    Definition,
    PathUse,
    ProgramText,
    Source,
    argument,
    default_of,
    last_name,
    parameters,
    passed,
)
from clusterdp.check.program.sources import Sources

# Function that opens a file -> the argument that names the file
READS = {
    "torch.load": (0, "f"),
    "numpy.load": (0, "file"),
    "numpy.loadtxt": (0, "fname"),
    "numpy.genfromtxt": (0, "fname"),
    "numpy.memmap": (0, "filename"),
    "h5py.File": (0, "name"),
    "PIL.Image.open": (0, "fp"),
    "safetensors.torch.load_file": (0, "filename"),
    "os.listdir": (0, "path"),
    "os.scandir": (0, "path"),
    "pandas.read_csv": (0, "filepath_or_buffer"),
    "pandas.read_parquet": (0, "path"),
    "pandas.read_json": (0, "path_or_buf"),
    "pandas.read_pickle": (0, "filepath_or_buffer"),
    "pyarrow.parquet.read_table": (0, "source"),
    "torchvision.datasets.ImageFolder": (0, "root"),
}
WRITES = {
    "torch.save": (1, "f"),
    "numpy.save": (0, "file"),
    "numpy.savez": (0, "file"),
    "numpy.savetxt": (0, "fname"),
    "safetensors.torch.save_file": (1, "filename"),
    "os.makedirs": (0, "name"),
    "os.mkdir": (0, "path"),
    "torch.utils.tensorboard.SummaryWriter": (0, "log_dir"),
    "tensorboardX.SummaryWriter": (0, "logdir"),
    "logging.FileHandler": (0, "filename"),
}
TAKES_ELSEWHERE = frozenset(
    "copy copy2 copyfile copytree move put put_file upload upload_file upload_folder upload_fileobj "
    "upload_from_filename run call check_call check_output system Popen log_artifact".split()
)
OF_A_PATH_READ = frozenset({"read_text", "read_bytes", "iterdir", "glob", "rglob"})
OF_A_PATH_WRITTEN = frozenset({"write_text", "write_bytes", "mkdir", "touch"})
OPENS = frozenset({"open", "io.open", "gzip.open", "bz2.open", "lzma.open", "codecs.open"})
TEMPORARY = frozenset({"tempfile.gettempdir", "tempfile.mkdtemp"})
JOINING = frozenset({"pathlib.Path", "str", "os.path.expanduser", "os.path.abspath", "os.path.join"})


def add_opened_paths(text: ProgramText, sources: Sources) -> None:
    for source in sources.each:
        for call in source.calls:
            text.copies_files |= last_name(call.func) in TAKES_ELSEWHERE
            for target, written in _target(call, source):
                path, whole = PathText(sources, source).written_out(target)
                if path:
                    place = source.place(call)
                    use = PathUse(place.file, place.line, place.text, path, written, whole, named=target is call)
                    text.opened.append(use)


def _target(call: ast.Call, source: Source) -> Iterator[tuple[ast.expr, bool]]:
    """Yields (the expression for the file, whether the file is written) if the call opens a file."""
    name = source.name(call.func)
    found: ast.expr | None = None
    written = False
    if name in OPENS:
        found, written = argument(call, 0, "file", "filename"), _writes(argument(call, 1, "mode"))
    elif name in READS:
        found = argument(call, *READS[name])
        written = name == "h5py.File" and _writes(argument(call, 1, "mode"))
    elif name in WRITES:
        found, written = argument(call, *WRITES[name]), True
    elif isinstance(call.func, ast.Attribute) and is_path(call.func.value, source):
        method = call.func.attr
        if method in OF_A_PATH_READ | OF_A_PATH_WRITTEN or method == "open":
            found = call.func.value
            written = method in OF_A_PATH_WRITTEN or (method == "open" and _writes(argument(call, 0, "mode")))
    elif name == "pathlib.Path" and len(call.args) == 1:
        found = call
    if found is not None:
        yield found, written


def opens(node: ast.AST, source: Source) -> bool:
    """Returns whether the node is a call of open(), or of the method open() of a pathlib.Path."""
    if not isinstance(node, ast.Call):
        return False
    of_a_path = isinstance(node.func, ast.Attribute) and node.func.attr == "open" and is_path(node.func.value, source)
    return of_a_path or source.name(node.func) in OPENS


def _writes(mode: ast.expr | None) -> bool:
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and bool(set(mode.value) & set("wax+"))


def is_path(node: ast.expr, source: Source, hops: int = MOST_HOPS) -> bool:
    """Returns whether the node is certainly a pathlib.Path."""
    if isinstance(node, ast.Call):
        return source.name(node.func) == "pathlib.Path"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return is_path(node.left, source, hops)
    values = source.values.get(last_name(node), [])
    return bool(hops and len(values) == 1 and is_path(values[0], source, hops - 1))


@dataclass(frozen=True)
class PathText:
    """Finds the text of paths in `source`. Each step from a name to its value uses up one of the `hops`."""

    sources: Sources
    source: Source
    hops: int = MOST_HOPS

    def written_out(self, node: ast.expr) -> tuple[str, bool]:
        """Returns (the beginning of a path, as far as the program's text has it, whether the beginning is the whole
        path)."""
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
        """Returns the text of a name's only value. A parameter stands for the value that the only call passes, or for
        its default."""
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
    """Returns whether the node is the path of a temporary folder, which exists only on one host: tempfile.gettempdir(),
    os.environ["TMPDIR"], os.getenv(...)."""
    if isinstance(node, ast.Subscript):
        return source.name(node.value) == "os.environ" and last_name(node).endswith("TMPDIR")
    if not isinstance(node, ast.Call):
        return False
    asked = node.args[0] if node.args and source.name(node.func) in ("os.environ.get", "os.getenv") else None
    of_variable = isinstance(asked, ast.Constant) and str(asked.value).endswith("TMPDIR")
    return of_variable or source.name(node.func) in TEMPORARY
