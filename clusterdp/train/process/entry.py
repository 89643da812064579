"""Loads the function that `entry:` names, and checks that it accepts `params:`, before ranks wait."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clusterdp.config.params import check_handle, check_names, check_value
from clusterdp.errors import EntryError
from clusterdp.wording import did_you_mean

Function = Callable[..., Any]
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def load(entry: str) -> Function:
    """Loads the function from `package.module:function`. Raises a one-line EntryError for any error in the import of
    the function's module."""
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
        none = f"It has {', '.join(here) or 'none'}."
        raise EntryError(f"entry: {module_name} has no function {name!r}. {did_you_mean(name, here, none)}")
    loaded: Function = function
    return loaded


def check_params(function: Function, params: Mapping[str, Any]) -> None:
    """Raises EntryError, with the key, if function(job, **params) cannot be called, or contradicts its annotations.

    The submit does the same check, but the module on the login node may be different or missing.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some builtins have no signature
    what = getattr(function, "__qualname__", repr(function))
    _check_call(what, signature, params)
    if hasattr(function, "__wrapped__"):
        return  # a decorator may turn "0.1" into a float
    handle, *taken = signature.parameters.values()
    _check_handle(what, handle, params)
    for each in taken:
        if each.kind in NAMED and each.name in params:
            check_value(each.name, params[each.name], _annotation(each), each.default, f"{what}()")


def with_job(function: Function) -> Function:
    """Returns the function with a first parameter for the JobHandle, if it has no positional parameter."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return function
    if any(each.kind in (*POSITIONAL, each.VAR_POSITIONAL) for each in parameters):
        return function

    def called(_job: Any, /, **params: Any) -> Any:
        return function(**params)

    handle = inspect.Parameter("_job", inspect.Parameter.POSITIONAL_ONLY)
    called.__signature__ = inspect.Signature([handle, *parameters])  # type: ignore[attr-defined]
    called.__qualname__ = getattr(function, "__qualname__", repr(function))
    return called


def _check_handle(what: str, first: inspect.Parameter, params: Mapping[str, Any]) -> None:
    if first.kind in POSITIONAL:
        check_handle(first.name, _annotation(first), first.default, f"{what}()", params)


def _check_call(what: str, signature: inspect.Signature, params: Mapping[str, Any]) -> None:
    try:
        signature.bind(None, **params)
        return
    except TypeError as error:
        said = str(error)
    cannot = f"entry: {what}(job, **params) cannot be called: {said}. Its first parameter is the job handle."
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise EntryError(cannot)
    _check_handle(what, parameters[0], params)
    taken = {p.name: p.default is p.empty for p in parameters[1:] if p.kind in NAMED}
    check_names(taken, f"{what}()", params)
    raise EntryError(cannot)


def _annotation(parameter: inspect.Parameter) -> str | None:
    """Returns the annotation as text. With `from __future__ import annotations`, the annotation already is text."""
    said = parameter.annotation
    if said is inspect.Parameter.empty:
        return None
    return said if isinstance(said, str) else inspect.formatannotation(said)


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
