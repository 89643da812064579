"""RankGuards: whether a line is for one rank alone: below `if rank == 0`, after `if rank: return`, in a function that
is only called so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from clusterdp.check.program.source import Definition, Source, last_name
from clusterdp.check.program.sources import Sources

# In a test, or in what its names stand for.
RANK = re.compile(
    r"rank|procid|process_index|is_main|main_process|master|primary|chief|leader|coordinator|global_zero|is_distributed"
    r"|gpu_?id|device\.index",
    re.I,
)
NUMBER = re.compile(r"(?:\w*_)?(?:rank|procid|gpu_?id|process_index)", re.I)  # is 0 on the first rank
LEAVES = (ast.Return, ast.Continue, ast.Raise, ast.Break)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit"})
RUN_ON_ALL = frozenset({"spawn", "launch", "start_processes"})  # torch.multiprocessing.spawn(main)
MOST_HOPS, MOST_VALUES = 3, 8  # from a name in a test to what it stands for
TESTS = (ast.Name, ast.Attribute, ast.Compare, ast.BoolOp, ast.UnaryOp)


class RankGuards:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._functions: dict[Definition, bool | None] = {}
        self._asking: set[Definition] = set()  # those that call one another
        self._leaving: dict[Definition | Path, list[ast.If]] = {}

    def for_one_rank(self, node: ast.AST, source: Source) -> bool | None:
        """None if that cannot be seen: in a function that is passed on, and called from elsewhere."""
        self._sources.spend()
        child = node
        for above in source.above(node):
            if self._is_below(child, above, source):
                return True
            child = above
        if self._is_after_leaving(node, source):
            return True
        function = source.function_of(node)
        return False if function is None else self._of_function(function, source)

    def _of_function(self, function: Definition, source: Source) -> bool | None:
        if function not in self._functions:
            self._asking.add(function)
            self._functions[function] = self._ask_callers(function, source)
            self._asking.remove(function)
        return self._functions[function]

    def _ask_callers(self, function: Definition, source: Source) -> bool | None:
        if any(self._asks_rank(each, source) for each in function.decorator_list):
            return True
        callers = self._sources.callers(function, source)
        others = [each for each in callers if each[0].function_of(each[1]) not in self._asking]
        asked = [self.for_one_rank(call, where) for where, call in others]
        if False in asked:
            return False
        of_class = source.parents.get(function)
        inherits = isinstance(of_class, ast.ClassDef) and bool(of_class.bases)
        if None in asked or function.name in self._passed_on or (inherits and not callers):
            return None
        return bool(asked)

    @cached_property
    def _passed_on(self) -> set[str]:
        """Functions that are named without being called: `Thread(target=save)`, `hooks = [save]`."""
        return {
            last_name(each)
            for source in self._sources.each
            for each in source.nodes
            if isinstance(each, (ast.Name, ast.Attribute))
            and isinstance(each.ctx, ast.Load)
            and not _is_run(each, source.parents.get(each))
        }

    def _is_below(self, child: ast.AST, above: ast.AST, source: Source) -> bool:
        if isinstance(above, (ast.If, ast.IfExp, ast.While)) and child is not above.test:
            body = above.body if isinstance(above.body, list) else [above.body]
            return self._is_for_one(above.test, child in body, source)
        if isinstance(above, ast.Match):
            return self._asks_rank(above.subject, source)
        if isinstance(above, ast.BoolOp) and child is not above.values[0]:
            return self._is_for_one(above.values[0], isinstance(above.op, ast.And), source)
        return False

    def _is_after_leaving(self, node: ast.AST, source: Source) -> bool:
        """Whether an earlier line of the same function, or of the module, leaves it for some ranks."""
        scope, line = source.function_of(node), getattr(node, "lineno", 0)
        key = scope or source.file
        if key not in self._leaving:
            self._leaving[key] = [*_leaving(scope, source)]
        above = {*source.above(node)}
        return any(
            each.lineno < line
            and each not in above
            and (not isinstance(each.body[-1], (ast.Continue, ast.Break)) or _loop_of(each, source) in above)
            and self._is_for_one(each.test, False, source)
            for each in self._leaving[key]
        )

    def _is_for_one(self, test: ast.expr, is_true: bool, source: Source) -> bool:
        """Whether one rank alone goes on where the test is true, or where it is not. In doubt it is so."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._is_for_one(test.operand, not is_true, source)
        if isinstance(test, ast.BoolOp):
            return any(self._is_for_one(each, is_true, source) for each in test.values)
        if not self._asks_rank(test, source):
            return False
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and ast.unparse(test.comparators[0]) == "0":
            if isinstance(test.ops[0], (ast.NotEq, ast.Gt)):
                return not is_true
            return is_true or not isinstance(test.ops[0], ast.Eq)
        if isinstance(test, (ast.Name, ast.Attribute)) and NUMBER.fullmatch(last_name(test)):
            return not is_true
        return True

    def _asks_rank(self, node: ast.expr, source: Source) -> bool:
        return any(RANK.search(text) for text in self._texts(node, source, MOST_HOPS))

    def _texts(self, node: ast.expr, source: Source, hops: int) -> Iterator[str]:
        """As it is written, and what its names stand for: values, and functions of the program."""
        yield ast.unparse(node)
        names = {last_name(each) for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute))}
        for name in sorted(names) if hops and isinstance(node, (*TESTS, ast.Call)) else ():
            for value in source.values.get(name, [])[:MOST_VALUES] if isinstance(node, TESTS) else ():
                yield from self._texts(value, source, hops - 1)
            for _, function in self._sources.functions(name, source)[:MOST_VALUES]:
                yield " ".join(map(ast.unparse, function.body))


def _is_run(node: ast.AST, parent: ast.AST | None) -> bool:
    """Called, or started on each rank; or only the beginning of a longer name."""
    if isinstance(parent, ast.Attribute):
        return True
    return isinstance(parent, ast.Call) and (parent.func is node or last_name(parent.func) in RUN_ON_ALL)


def _leaving(scope: Definition | None, source: Source) -> Iterator[ast.If]:
    for each in source.nodes if scope is None else ast.walk(scope):
        if isinstance(each, ast.If) and source.function_of(each) is scope and _leaves(each.body[-1], source):
            yield each


def _leaves(last: ast.stmt, source: Source) -> bool:
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return source.name(last.value.func) in EXITS
    return isinstance(last, LEAVES)


def _loop_of(node: ast.AST, source: Source) -> ast.AST | None:
    return next((each for each in source.above(node) if isinstance(each, LOOPS)), None)
