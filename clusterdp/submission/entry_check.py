"""Checks at submit that the entry exists and takes the params, without an import: the login node may have no torch, and
an import can take a minute.

The module's file is searched for in the same places as by Python, in the submit directory first, and its text is read.
Facts that only an import can show are checked in the job, such as names that are made at run time."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from clusterdp.config.params import check_handle, check_names, check_value
from clusterdp.errors import EntryError
from clusterdp.wording import did_you_mean

Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_entry(entry: str, params: Mapping[str, Any], submit_dir: Path, elsewhere: bool = False) -> None:
    """Raises EntryError if the entry's module or function is missing, or if the function does not take the params.

    With `elsewhere`, a missing module is not an error, because the job may find modules that are not installed here.
    """
    if function := find_function(entry, submit_dir, elsewhere):
        check_params(entry, function, params)


def find_function(entry: str, submit_dir: Path, elsewhere: bool = False) -> Function | None:
    """Returns the parsed function for check_params(); None if its text does not show the parameters. Raises the same
    errors as check_entry()."""
    module, _, function = entry.partition(":")
    try:
        source = _find(module, entry, [str(submit_dir), *(path for path in sys.path if path)])
    except EntryError:
        if not elsewhere:
            raise
        return None
    if source is None:
        return None
    try:
        text = source.read_bytes()
        tree = ast.parse(text, filename=str(source))
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise EntryError(f"entry: {entry}: {source}{line}: {getattr(error, 'msg', error)}. Correct the file.") from None
    names, complete = _names(tree)
    complete &= b"globals" not in text
    found = names.get(function)
    if function not in names and complete:
        hint = did_you_mean(function, names, "Define it there, or correct the name.", prefix=f"{module}:")
        raise EntryError(f"entry: {entry}: {source} has no {function}. {hint}")
    return found if isinstance(found, Function) and not found.decorator_list else None


def _find(module: str, entry: str, path: list[str]) -> Path | None:
    """Returns the module's source file; None if the module exists, but has no source text."""
    search: Any = path
    spec = None
    parts = module.split(".")
    for i, part in enumerate(parts):
        spec = PathFinder.find_spec(part, search)  # its full name would need an import of the package above it
        if spec is None or (spec.origin is None and i + 1 == len(parts)):  # a folder without __init__.py
            if i == 0 and part in sys.builtin_module_names:
                return None
            above = ".".join(parts[:i]) or "the submit directory, beside a config below it, or in this interpreter"
            raise EntryError(
                f"entry: {entry}: there is no module {'.'.join(parts[: i + 1])} in {above}. "
                "Submit from the folder that holds it, or correct the name."
            )
        search = spec.submodule_search_locations or []
    origin = Path(spec.origin) if spec and spec.origin else None
    return origin if origin and origin.suffix == ".py" else None


def _names(tree: ast.Module) -> tuple[dict[str, ast.AST], bool]:
    """Returns the names that the module binds at its top level, in any branch, and whether the list is complete
    (`import *` or __getattr__ may add names)."""
    names: dict[str, ast.AST] = {}
    complete = True
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            complete &= all(alias.name != "*" for alias in node.names)
            names.update({alias.asname or alias.name.split(".")[0]: node for alias in node.names})
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.setdefault(node.id, node)
        else:
            todo.extend(ast.iter_child_nodes(node))
    return names, complete and "__getattr__" not in names


def check_params(entry: str, function: Function, params: Mapping[str, Any]) -> None:
    handle, taken = _parameters(function)
    if handle is not None:
        check_handle(handle.name, handle.annotation, handle.default, entry, params)
    elif function.args.vararg is None:
        raise EntryError(f"entry: {entry} has no parameter for the job handle. Write def {function.name}(job, ...).")
    names = {each.name: each.default is REQUIRED for each in taken}
    check_names(names, entry, params, any_name=function.args.kwarg is not None)
    for each in taken:
        if each.name in params:
            check_value(each.name, params[each.name], each.annotation, each.default, entry)


REQUIRED = object()
UNKNOWN = object()  # stands for a default that is not a plain value


@dataclass(frozen=True)
class _Parameter:
    name: str
    annotation: str | None
    default: Any


def _parameters(function: Function) -> tuple[_Parameter | None, list[_Parameter]]:
    """Returns the first parameter, which gets the job handle, and the other parameters, which `params:` may set."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    both = [
        _Parameter(each.arg, ast.unparse(each.annotation) if each.annotation else None, _value(default))
        for each, default in (
            *zip(positional, defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        )
    ]
    return (both[0] if positional else None), both[1:] if positional else both


def _value(default: ast.expr | None) -> Any:
    if default is None:
        return REQUIRED
    try:
        return ast.literal_eval(default)
    except (ValueError, TypeError):
        return UNKNOWN
