"""Which variables the body of a `for` sets and reads, by the bytecode of its function; and the variables of a frame."""

from __future__ import annotations

import ctypes
import dis
import inspect
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

_ACCESS = re.compile(r"(LOAD|STORE|DELETE)_(?:FAST|NAME|GLOBAL|DEREF|CLASSDEREF|CLOSURE)(?!_AND_CLEAR)")
_ENDS = re.compile("RETURN|RAISE|RERAISE|JUMP_FORWARD|JUMP_BACKWARD|JUMP_ABSOLUTE")  # another instruction follows


class Names(NamedTuple):
    """Names of variables, for a body that runs in one pass of an outer loop or call.

    own: those of the pass that go on from body to body or are read after the last one: which the body sets, and what
    the pass has set and the body reads. longer: those from before the pass that the body may change: which it sets
    after it has read them, and those that it reads. after: which the body sets, and what follows it reads.
    """

    own: frozenset[str]
    longer: frozenset[str]
    after: frozenset[str]


def is_at_for(frame: FrameType | None) -> bool:
    """Returns whether the frame waits for the next item of a `for`."""
    return (
        frame is not None
        and sys.implementation.name == "cpython"
        and _names(frame.f_code, frame.f_lasti, -1) is not None
    )


def names_of(frame: FrameType, outer: int | None) -> Names:
    """outer: the place of the outer loop's `for` in the same function. None: the outer loop is in another function,
    which calls this one in each pass."""
    found = _names(frame.f_code, frame.f_lasti, -1 if outer is None else outer)
    assert found is not None, "is_at_for() was true"
    return found


@lru_cache(256)
def _names(code: CodeType, at: int, outer: int) -> Names | None:
    instructions = list(dis.get_instructions(code))
    places = {each.offset: number for number, each in enumerate(instructions)}
    begin = max(number for offset, number in places.items() if offset <= at)
    if instructions[begin].opname != "FOR_ITER":
        return None
    accesses = [_accesses(each) for each in instructions]
    live, end = _live(instructions, accesses, places), places[instructions[begin].argval]
    start = max((number for offset, number in places.items() if offset <= outer), default=-1) + 1
    body = [access for each in accesses[begin + 1 : end] for access in each]
    sets, reads = ({name for what, name in body if (what == "LOAD") is is_read} for is_read in (False, True))
    before = {name for each in accesses[start:begin] for what, name in each if what == "STORE"}
    own = (sets & live[begin]) - (live[start] & live[begin + 1]) | (reads & before)
    longer = (sets & live[begin + 1]) | (reads - sets)
    return Names(frozenset(own), frozenset(longer - own), frozenset(sets & live[end]))


def _accesses(instruction: dis.Instruction) -> list[tuple[str, str]]:
    """Returns what an instruction does with which variables: since Python 3.13, some use two."""
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return list(zip(_ACCESS.findall(instruction.opname), names, strict=False))


def _live(
    instructions: list[dis.Instruction], accesses: list[list[tuple[str, str]]], places: Mapping[int, int]
) -> list[set[str]]:
    """Returns for each instruction the names that are read from there on before they are set. Handlers of exceptions
    are left out."""
    live = [set[str]() for _ in range(len(instructions) + 1)]
    changed = True
    while changed:
        changed = False
        for number in range(len(instructions) - 1, -1, -1):
            each = instructions[number]
            names = set[str]() if _ENDS.match(each.opname) else set(live[number + 1])
            if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
                names |= live[places[each.argval]]
            for what, name in reversed(accesses[number]):
                names.add(name) if what == "LOAD" else names.discard(name)
            changed = changed or names != live[number]
            live[number] = names
    return live


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Returns the variables of a function and of its module. Until Python 3.12, all calls of locals() in a function
    return the same dict, and reading its variables fills this dict."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED or sys.version_info >= (3, 13):
        return {**frame.f_globals, **frame.f_locals}
    if _has_locals(frame):
        return dict(frame.f_globals)
    own = frame.f_locals
    variables = {**frame.f_globals, **own}
    if sys.getrefcount(own) == 3:  # the frame's, ours and the call's: no debugger has it
        own.clear()  # else it keeps each object alive that the program has deleted
    return variables


def _has_locals(frame: FrameType) -> bool:
    """Returns whether the dict of the variables is the program's, such as `config = locals()`."""
    return not {"locals", "vars"}.isdisjoint(frame.f_code.co_names)


def set_variables(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Sets variables of a function that waits for a call. Source: PEP 667; before Python 3.13, what debuggers call."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        frame.f_locals.update(values)  # those of a module
        return
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    values = {name: value for name, value in values.items() if name in own}
    if not values or (sys.version_info < (3, 13) and _has_locals(frame)):
        return
    variables = frame.f_locals
    variables.update(values)
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        variables.clear()
