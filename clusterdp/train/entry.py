"""What `entry:` names, and whether it takes what `params:` gives: found out before any rank waits for another."""

from __future__ import annotations

import difflib
import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clusterdp.errors import EntryError

Function = Callable[..., Any]


def load(entry: str) -> Function:
    """`package.module:function`. EntryError in one line, whatever its import raises."""
    module_name, _, name = entry.partition(":")
    if not module_name or not name:
        raise EntryError(f"entry: {entry!r} is not of the form package.module:function. Write it so.")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # user code runs here, and may raise anything
        raise EntryError(_import_failed(module_name, error)) from error
    function: Any = getattr(module, name, None)
    if not callable(function):
        here = [n for n, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module_name]
        raise EntryError(f"entry: {module_name} has no function {name!r}. {_did_you_mean(name, here)}")
    loaded: Function = function
    return loaded


def check_params(function: Function, params: Mapping[str, Any]) -> None:
    """EntryError, naming the key, if function(job, **params) could not even be called."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some builtins have none
    try:
        signature.bind(None, **params)
        return
    except TypeError as error:
        said = str(error)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes = [p.name for p in list(signature.parameters.values())[1:] if p.kind in named]
    what = getattr(function, "__qualname__", repr(function))
    for key in params:
        if key not in takes:
            raise EntryError(f"params.{key}: {what}() takes no such parameter. {_did_you_mean(key, takes)}")
    for name in takes:
        if name not in params and signature.parameters[name].default is inspect.Parameter.empty:
            raise EntryError(f"params.{name}: {what}() needs it, and it is not given. Add it under params:.")
    raise EntryError(f"entry: {what}(job, **params) cannot be called: {said}. Its first parameter is the job handle.")


def _import_failed(module: str, error: Exception) -> str:
    what = f"{type(error).__name__}: {error}".split("\n")[0]
    if isinstance(error, ModuleNotFoundError) and error.name and module.split(".")[0] == error.name.split(".")[0]:
        return (
            f"entry: there is no module {error.name!r} here ({Path.cwd()}). Is it in the submit directory, "
            "and does git not ignore it?"
        )
    at = [
        f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename and f.filename != __file__
    ]
    where = f" ({at[-1].filename}, line {at[-1].lineno})" if at else ""
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
    return f"entry: {module} does not import: {what}{where}. Try: python -c 'import {module}'."


def _did_you_mean(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    if close:
        return f"Did you mean {close[0]}?"
    return f"There are: {', '.join(known)}." if known else "There are none."
