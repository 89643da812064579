"""Finds ports, devices and numbers of loader workers that a program has hard-coded."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from clusterdp.check.program.source import CodePlace, ProgramText, Source, argument, last_name
from clusterdp.check.program.sources import Sources

TCP = re.compile(r"tcp://[^/\s]+:[0-9]{2,5}")
CUDA = re.compile(r"cuda:[0-9]+")
LOCAL_RANK = re.compile(
    r"local_rank|localid|set_device\((?![0-9])|%\s*[\w.]*device_count|local_process_index|CUDA_VISIBLE_DEVICES"
    r"|gpu_?id|device_?id|cuda:\{|\.(?:to|cuda)\((?:self\.)?\w*(?:rank|gpu)",
    re.I,
)
RANK = re.compile(r"rank|master|main(?!__)", re.I)
ALONE = re.compile(r"MASTER_PORT|environ|RANK|WORLD_SIZE|SLURM|elastic|launched|debug|single", re.I)
# Libraries that choose the device of each rank by themselves
CHOOSE_DEVICES = frozenset(
    "accelerate composer deepspeed horovod ignite lightning pytorch_lightning transformers".split()
)


def add_fixed_facts(text: ProgramText, sources: Sources) -> None:
    # If a program knows its local rank, a hard-coded device is used only in runs with one process.
    knows_its_device = any(LOCAL_RANK.search(line) for source in sources.each for line in source.lines)
    chooses = knows_its_device or not sources.complete or sources.libraries & CHOOSE_DEVICES
    for source in sources.each:
        for node in source.nodes:
            if _is_fixed_port(node, source):
                text.fixed_ports.append(source.place(node))
            if _is_map_location(node) and not _is_below(RANK, node, source):
                text.fixed_devices.append(source.place(node))
            elif not knows_its_device and isinstance(node, ast.Call) and not _is_below(RANK, node, source):
                devices = [*_devices(node, source)]
                text.fixed_devices += [source.place(each) for each in devices if each.value != "cuda"]
                if not chooses and (_is_bare_cuda(node) or any(each.value == "cuda" for each in devices)):
                    text.first_gpus.append(source.place(node))
            if isinstance(node, ast.keyword) and node.arg == "num_workers":
                text.workers += [(place, number) for place, number in _number(node.value, source)]


def _number(node: ast.expr, source: Source) -> Iterator[tuple[CodePlace, int]]:
    """Yields the number that an expression stands for: a literal number, the value of a name, or the default of an
    option."""
    value = _stands_for(node, source)
    if isinstance(value, ast.Constant) and type(value.value) is int:
        option = source.parents.get(source.parents.get(value, value))
        is_option = isinstance(option, ast.Call) and last_name(option.func) == "add_argument"
        yield source.place(option if is_option and option else value), value.value


def _stands_for(node: ast.expr, source: Source) -> ast.expr:
    """Returns the only value of a name; for `args.x`, the default of the option `--x`; for any other node, the node
    itself."""
    values = source.names.get(node.id, []) if isinstance(node, ast.Name) else []
    if isinstance(node, ast.Attribute):
        values = source.attributes.get(node.attr) or source.options.get(node.attr, [])
    return values[0] if len(values) == 1 else node


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


def _is_map_location(node: ast.AST) -> bool:
    """Returns whether the node is the argument `map_location` with a fixed GPU: all ranks would load their copies into
    the memory of this GPU."""
    return isinstance(node, ast.keyword) and node.arg == "map_location" and _is_cuda(node.value)


def _devices(node: ast.Call, source: Source) -> Iterator[ast.Constant]:
    """Yields the devices that a call names: `cuda:0`, `cuda` or a number, as literals or by a name that stands for a
    device."""
    if any(each.arg == "map_location" for each in node.keywords):
        return
    is_device, by_keyword = last_name(node.func) == "device", argument(node, 99, "device")
    if is_device and len(node.args) == 2 and _constant(node.args[0], source) == "cuda":
        number = node.args[1]
        if isinstance(number, ast.Constant) and type(number.value) is int:
            yield number
    elif last_name(node.func) == "to" or is_device or by_keyword is not None:
        put = node.args[:1] if by_keyword is None else [by_keyword]
        given = [_stands_for(each, source) for each in put]
        for each in (each for value in given for each in ast.walk(value) if not isinstance(value, ast.Call)):
            if isinstance(each, ast.Constant) and (_is_cuda(each) or each.value == "cuda"):
                yield each
    elif last_name(node.func) == "cuda" or source.name(node.func) == "torch.cuda.set_device":
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and type(first.value) is int:
            yield first


def _is_bare_cuda(node: ast.Call) -> bool:
    """Returns whether the call is `model.cuda()`."""
    return isinstance(node.func, ast.Attribute) and node.func.attr == "cuda" and not node.args and not node.keywords


def _is_cuda(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(CUDA.fullmatch(node.value))
