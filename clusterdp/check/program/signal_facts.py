"""Signals: which ones a program handles, where, and what the handlers do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterdp.check.program.program_text import ProgramText
from clusterdp.check.program.source import Function, Source, argument, last_name
from clusterdp.check.program.sources import Sources

NUMBERS = {1: "SIGHUP", 2: "SIGINT", 10: "SIGUSR1", 12: "SIGUSR2", 15: "SIGTERM"}
CATCHABLE = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP")
COLLECTIVES = frozenset(
    "all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all barrier broadcast broadcast_object_list "
    "gather gather_object monitored_barrier reduce reduce_scatter scatter".split()
)
EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit", "SystemExit"})


@dataclass(frozen=True)
class Handler:
    """signals: by name; all that can be caught where they are not written out."""

    source: Source
    call: ast.Call
    signals: frozenset[str]
    functions: Sequence[tuple[Source, Function]]


def add_signal_facts(text: ProgramText, sources: Sources) -> None:
    exits_otherwise = any(_exit_code(call, source) not in (None, 0) for source in sources.each for call in source.calls)
    requeues = any("scontrol" in line for source in sources.each for line in source.lines)
    for handler in _handlers(sources):
        place = handler.source.place(handler.call)
        for name in handler.signals:
            text.handled.setdefault(name, []).append(place)
        nodes = [each for function in handler.functions for each in _reached(*function, sources, set())]
        for source, node in nodes:
            if isinstance(node, ast.Call) and _is_collective(source.name(node.func)):
                text.collective_in_handler.append(source.place(node))
        if not exits_otherwise and not requeues:
            calls = [(source, node) for source, node in nodes if isinstance(node, ast.Call)]
            text.exits_zero_in_handler += [
                source.place(call) for source, call in calls if _exit_code(call, source) == 0
            ]


def _handlers(sources: Sources) -> Iterator[Handler]:
    for source in sources.each:
        for call in source.calls:
            name = source.name(call.func)
            if name == "signal.signal" or name.endswith(".add_signal_handler"):
                number, target = argument(call, 0, "signalnum", "sig"), argument(call, 1, "handler", "callback")
                if number is None or target is None:  # signal(*pair)
                    yield Handler(source, call, frozenset(CATCHABLE), ())
                    continue
                if last_name(target) in ("SIG_IGN", "SIG_DFL"):
                    continue
                named = sources.functions(last_name(target), source)
                functions = [(source, target)] if isinstance(target, ast.Lambda) else named
                yield Handler(source, call, _signals(number, source), functions)
            elif re.fullmatch(r"signal\.(sigwait|sigwaitinfo|sigtimedwait)", name) and call.args:
                yield Handler(source, call, _signals(call.args[0], source), ())


def _signals(node: ast.expr, source: Source) -> frozenset[str]:
    named = _named_signals(node)
    if not named and isinstance(node, ast.Name):  # for each in (SIGTERM, SIGUSR1): signal(each, handler)
        kinds = (ast.For, ast.comprehension)
        loops = [each for each in source.nodes if isinstance(each, kinds) and last_name(each.target) == node.id]
        values = [loop.iter for loop in loops] + source.values.get(node.id, [])
        values += [value for each in values for value in source.values.get(last_name(each), [])]
        named = {name for value in values for name in _named_signals(value)}
    return frozenset(named or CATCHABLE)


def _named_signals(node: ast.expr) -> set[str]:
    found = {last_name(each) for each in ast.walk(node) if last_name(each).startswith("SIG")}
    numbers = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and type(each.value) is int}
    return (found - {"SIG", "SIGNALS"}) | {NUMBERS[number] for number in numbers if number in NUMBERS}


def _reached(
    source: Source, function: Function, sources: Sources, seen: set[Function]
) -> Iterator[tuple[Source, ast.AST]]:
    """What is in a function, and in those of the program that it calls, where that can be one alone."""
    if function in seen:
        return
    seen.add(function)
    for node in ast.walk(function):
        yield source, node
        called = sources.called(node, source) if isinstance(node, ast.Call) else []
        if len(called) == 1:
            yield from _reached(*called[0], sources, seen)


def _is_collective(name: str) -> bool:
    before, _, last = name.rpartition(".")
    return last in COLLECTIVES and before.endswith(("dist", "distributed", "c10d", "distributed_c10d"))


def _exit_code(call: ast.Call, source: Source) -> int | str | None:
    """Of sys.exit() and the like: the code, `?` where it is computed; None of other calls."""
    if source.name(call.func) not in EXITS:
        return None
    value = call.args[0] if call.args else ast.Constant(0)
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, int) else 0 if value.value is None else 1
    return "?"
