"""Finds the ports that a program has hard-coded."""

from __future__ import annotations

import ast
import re

from clusterdp.check.program.source import ProgramText, Source, argument, last_name
from clusterdp.check.program.sources import Sources

TCP = re.compile(r"tcp://[^/\s]+:[0-9]{2,5}")
ALONE = re.compile(r"MASTER_PORT|environ|RANK|WORLD_SIZE|SLURM|elastic|launched|debug|single", re.I)


def add_fixed_ports(text: ProgramText, sources: Sources) -> None:
    for source in sources.each:
        text.fixed_ports += [source.place(node) for node in source.nodes if _is_fixed_port(node, source)]


def _is_fixed_port(node: ast.AST, source: Source) -> bool:
    if isinstance(node, ast.Call):
        method = argument(node, 1 if last_name(node.func) == "init_process_group" else 99, "init_method")
        if method is not None and TCP.fullmatch(_address(method, source)):
            return True
        if last_name(node.func) == "add_argument":
            return bool(TCP.fullmatch(_constant(argument(node, 99, "default"), source)))
        if last_name(node.func) == "TCPStore":
            return bool(_constant(argument(node, 1, "port"), source))
        if source.name(node.func) == "os.environ.update":
            values = [each for argument in node.args if isinstance(argument, ast.Dict) for each in _pairs(argument)]
            values += [(each.arg or "", each.value) for each in node.keywords]
            return any(key == "MASTER_PORT" and _constant(value, source) for key, value in values)
        return source.name(node.func) == "os.putenv" and [_constant(a, source) for a in node.args[:1]] == [
            "MASTER_PORT"
        ]
    if isinstance(node, ast.Assign):
        to_environ = any(
            isinstance(target, ast.Subscript)
            and source.name(target.value) == "os.environ"
            and last_name(target) == "MASTER_PORT"
            for target in node.targets
        )
        return to_environ and bool(_constant(node.value, source)) and not _is_default(node, source)
    return False


def _pairs(node: ast.Dict) -> list[tuple[str, ast.expr]]:
    pairs = zip(node.keys, node.values, strict=True)
    return [(key.value, value) for key, value in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def _is_default(node: ast.AST, source: Source) -> bool:
    """Returns whether the node is below `if "MASTER_PORT" not in os.environ`, `except KeyError:` or a test for a single
    process: the value is then a default, and not hard-coded."""
    return any(isinstance(each, ast.ExceptHandler) for each in source.above(node)) or _is_below(ALONE, node, source)


def _is_below(condition: re.Pattern[str], node: ast.AST, source: Source) -> bool:
    """Returns whether the node is below an `if` whose test matches `condition`."""
    tests = [each.test for each in source.above(node) if isinstance(each, (ast.If, ast.IfExp))]
    return any(condition.search(ast.unparse(test)) for test in tests)


def _constant(node: ast.expr | None, source: Source) -> str:
    """Returns the text of a constant, or of a name that stands for a constant; empty for any other node."""
    if isinstance(node, ast.Call) and source.name(node.func) == "str" and len(node.args) == 1:
        return _constant(node.args[0], source)
    if isinstance(node, ast.Name) and len(values := source.values.get(node.id, [])) == 1:
        node = values[0]
    return str(node.value) if isinstance(node, ast.Constant) and node.value is not None else ""


def _address(node: ast.expr, source: Source) -> str:
    """Returns the text of a constant, or of f"tcp://{host}:29500" with `{}` in place of the computed parts."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
    return _constant(node, source)
