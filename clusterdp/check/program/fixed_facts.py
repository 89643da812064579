"""What is written out and differs from rank to rank, or from job to job: ports and devices. And loader workers."""

from __future__ import annotations

import ast
import re

from clusterdp.check.program.program_text import ProgramText
from clusterdp.check.program.source import Source, argument, last_name
from clusterdp.check.program.sources import Sources

TCP = re.compile(r"tcp://[^/\s]+:[0-9]{2,5}")
CUDA = re.compile(r"cuda:[0-9]+")
LOCAL_RANK = re.compile(r"local_rank|localid|set_device\((?![0-9])|%\s*[\w.]*device_count|local_process_index", re.I)


def add_fixed_facts(text: ProgramText, sources: Sources) -> None:
    # A program that knows its local rank has the fixed device for runs with one process.
    knows_its_device = any(LOCAL_RANK.search(line) for source in sources.each for line in source.lines)
    for source in sources.each:
        for node in source.nodes:
            if _is_fixed_port(node, source):
                text.fixed_ports.append(source.place(node))
            if _is_map_location(node) or (not knows_its_device and _is_fixed_device(node, source)):
                text.fixed_devices.append(source.place(node))
            if isinstance(node, ast.keyword) and node.arg == "num_workers":
                number = node.value.value if isinstance(node.value, ast.Constant) else None
                if type(number) is int:
                    text.workers.append((source.place(node.value), number))


def _is_fixed_port(node: ast.AST, source: Source) -> bool:
    if isinstance(node, ast.Call):
        method = argument(node, 99, "init_method")
        if method is not None and TCP.fullmatch(_constant(method, source)):
            return True
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
    """Below `if "MASTER_PORT" not in os.environ`, or where the program is one process of its own."""
    tests = [ast.unparse(each.test) for each in source.above(node) if isinstance(each, (ast.If, ast.IfExp))]
    return any(re.search(r"MASTER_PORT|environ|RANK|WORLD_SIZE|SLURM", test, re.I) for test in tests)


def _constant(node: ast.expr | None, source: Source) -> str:
    """Its text if it is a constant, or a name that stands for one."""
    if isinstance(node, ast.Call) and source.name(node.func) == "str" and len(node.args) == 1:
        return _constant(node.args[0], source)
    if isinstance(node, ast.Name) and len(values := source.values.get(node.id, [])) == 1:
        node = values[0]
    return str(node.value) if isinstance(node, ast.Constant) and node.value is not None else ""


def _is_map_location(node: ast.AST) -> bool:
    """All ranks load to one GPU, and its memory holds as many copies."""
    return isinstance(node, ast.keyword) and node.arg == "map_location" and _is_cuda(node.value)


def _is_fixed_device(node: ast.AST, source: Source) -> bool:
    if not isinstance(node, ast.Call) or any(each.arg == "map_location" for each in node.keywords):
        return False
    if last_name(node.func) in ("to", "device") or source.name(node.func) == "torch.device":
        return any(_is_cuda(each) for argument in node.args for each in ast.walk(argument))
    if last_name(node.func) in ("cuda",) or source.name(node.func) == "torch.cuda.set_device":
        first = node.args[0] if node.args else None
        return isinstance(first, ast.Constant) and type(first.value) is int
    return False


def _is_cuda(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(CUDA.fullmatch(node.value))
