"""Whether a line is for one rank alone: below `if rank == 0`, after `if rank: return`, in a function that is only
called so."""

from __future__ import annotations

import ast
import re

from clusterdp.check.program.source import Source
from clusterdp.check.program.sources import Sources

RANK = re.compile(
    r"rank|procid|is_main|main_process|is_master|is_primary|is_chief|global_zero|is_distributed|world_size", re.I
)
LEAVES = (ast.Return, ast.Continue, ast.Raise, ast.Break)


def is_guarded(node: ast.AST, source: Source, sources: Sources, below: frozenset[ast.AST] = frozenset()) -> bool:
    """below: functions that have been asked after already, and call themselves if they come up again."""
    if any(_is_test(each) for each in source.above(node)) or _after_leaving(node, source):
        return True
    function = source.function_of(node)
    if function is None:
        return False
    if any(RANK.search(ast.unparse(each)) for each in function.decorator_list):
        return True
    below |= {function}
    callers = [(where, call) for where, call in sources.calls_of(function.name) if where.function_of(call) not in below]
    return bool(callers) and all(is_guarded(call, where, sources, below) for where, call in callers)


def _is_test(node: ast.AST) -> bool:
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        return bool(RANK.search(ast.unparse(node.test)))
    return isinstance(node, ast.BoolOp) and bool(RANK.search(ast.unparse(node.values[0])))


def _after_leaving(node: ast.AST, source: Source) -> bool:
    """Whether an earlier line of the same function leaves it for some ranks."""
    function = source.function_of(node)
    return function is not None and any(
        isinstance(each, ast.If)
        and each.lineno < getattr(node, "lineno", 0)
        and isinstance(each.body[-1], LEAVES)
        and _is_test(each)
        for each in ast.walk(function)
    )
