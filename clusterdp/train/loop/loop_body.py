"""Which variables the body of a `for` sets and reads, by the bytecode of its function; and the variables of a frame."""

from __future__ import annotations

import ctypes
import dis
import inspect
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

_ACCESS = re.compile(r"(LOAD|STORE|DELETE)_(?:FAST|NAME|GLOBAL|DEREF|CLASSDEREF|CLOSURE)(?!_AND_CLEAR)")
_CLOCKS = {f"{clock}{unit}" for clock in ("time", "monotonic", "perf_counter", "process_time") for unit in ("", "_ns")}
_ENDS = re.compile("RETURN|RAISE|RERAISE|JUMP_FORWARD|JUMP_BACKWARD|JUMP_ABSOLUTE")  # another instruction follows


class Names(NamedTuple):
    """Names of variables, for a body that runs in one pass of an outer loop or of a function.

    running: of the pass, set by the body for its next run or for what follows. last: of the body's last run, read by
    what follows. held: set by the pass before, and only read by the body, which may change what is in them. older: from
    before the pass, which the body sets or reads. sets: all that the function sets from the begin of the pass on; if it
    is not in this function, from the body on.
    """

    running: frozenset[str]
    last: frozenset[str]
    held: frozenset[str]
    older: frozenset[str]
    made: frozenset[str]
    sets: frozenset[str]


def is_at_for(frame: FrameType | None) -> bool:
    """Returns whether the frame waits for the next item of a `for`."""
    if frame is None or sys.implementation.name != "cpython":
        return False
    return _names(frame.f_code, frame.f_lasti, -1) is not None


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
    begin, start = (max((n for offset, n in places.items() if offset <= place), default=-1) for place in (at, outer))
    while instructions[begin].opname == "EXTENDED_ARG":
        begin += 1
    if instructions[begin].opname != "FOR_ITER":
        return None
    accesses = [_accesses(each) for each in instructions]
    end = places[instructions[begin].argval]
    older, again, later = _live(instructions, accesses, places, (start + 1, begin + 1, end))
    body = [access for each in accesses[begin + 1 : end] for access in each]
    sets, reads = ({name for what, name in body if (what == "LOAD") is is_read} for is_read in (False, True))
    before = {name for each in accesses[start + 1 : begin] for what, name in each if what == "STORE"}
    again &= sets
    is_function = code.co_flags & inspect.CO_OPTIMIZED
    mine = {*code.co_varnames, *code.co_cellvars, *code.co_freevars} if is_function else sets | reads
    clocks = {name for n in range(begin + 1, end) for _, name in accesses[n] if _is_clock(instructions, n)}
    mine -= clocks
    return Names(
        running=frozenset((again - older) & mine),
        last=frozenset(((sets & later) - again) & mine),
        held=frozenset(((reads & before) - sets) & mine),
        older=frozenset(((again & older) | (reads - sets - before)) - clocks),
        made=frozenset(again & older),
        sets=frozenset(
            name for each in accesses[max(start, begin if outer < 0 else 0) :] for what, name in each if what == "STORE"
        ),
    )


def _is_clock(instructions: list[dis.Instruction], number: int) -> bool:
    """Returns whether a variable is set to a time, as in `begun = time.time()`: it means nothing in another process."""
    before = number - 1
    while re.match("CALL|PRECALL|PUSH_NULL|COPY|DUP_TOP|STORE_FAST|EXTENDED_ARG", instructions[before].opname):
        before -= 1
    is_read = re.match("LOAD_(ATTR|METHOD|GLOBAL|NAME|DEREF)", instructions[before].opname)
    return instructions[number].opname.startswith("STORE") and bool(is_read) and instructions[before].argval in _CLOCKS


def _accesses(instruction: dis.Instruction) -> list[tuple[str, str]]:
    """Returns what an instruction does with which variables: since Python 3.13, some use two."""
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return list(zip(_ACCESS.findall(instruction.opname), names, strict=False))


def _live(
    instructions: list[dis.Instruction],
    accesses: list[list[tuple[str, str]]],
    places: Mapping[int, int],
    wanted: tuple[int, ...],
) -> list[set[str]]:
    """Returns for each wanted instruction the names that are read from there on before they are set. Handlers of
    exceptions are left out."""
    names = dict.fromkeys(name for each in accesses for _, name in each)
    bits = {name: 1 << number for number, name in enumerate(names)}  # sets as numbers: a function may have 10,000 lines
    # SETUP_*: jumps to a handler, in Python 3.10
    jumps = {code for code in (*dis.hasjrel, *dis.hasjabs) if not dis.opname[code].startswith("SETUP_")}
    live, changed = [0] * (len(instructions) + 1), True
    while changed:
        changed = False
        for number in range(len(instructions) - 1, -1, -1):
            each = instructions[number]
            here = 0 if _ENDS.match(each.opname) else live[number + 1]
            if each.opcode in jumps:
                here |= live[places[each.argval]]
            for what, name in reversed(accesses[number]):
                here = here | bits[name] if what == "LOAD" else here & ~bits[name]
            changed = changed or here != live[number]
            live[number] = here
    return [{name for name, bit in bits.items() if each & bit} for each in (live[place] for place in wanted)]


def named_by_functions(frame: FrameType) -> set[str]:
    """Returns the variables of a function that its inner functions share, and the global ones that the functions of its
    module name."""
    names, space = {*frame.f_code.co_cellvars}, frame.f_globals
    things = list(space.values())
    for kind in [each for each in things if type(each) is type and each.__module__ == space.get("__name__")]:
        things += [getattr(each, "__func__", each) for each in vars(kind).values()]
    codes = [each.__code__ for each in things if type(each) is FunctionType and each.__globals__ is space]
    for code in codes:  # grows: comprehensions and inner functions have code of their own
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        names |= {name for name in code.co_names if name in space}
    return names


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
    """Returns whether the dict of the variables is the program's, such as `config = locals()`, or exec()'s."""
    return not {"locals", "vars", "dir", "exec", "eval"}.isdisjoint(frame.f_code.co_names)


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
