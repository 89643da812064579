"""read_program(): finds the facts about the program that a command runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterdp.check.program.command_words import program_of
from clusterdp.check.program.fixed_ports import add_fixed_ports
from clusterdp.check.program.shell_lines import commands_of, fixed_ports, has_trap
from clusterdp.check.program.source import (
    CodePlace,
    Function,
    ProgramText,
    ShellCall,
    Source,
    argument,
    last_name,
    parameters,
    passed,
)
from clusterdp.check.program.sources import Sources, TooMuch, sources_from
from clusterdp.plainfile import read_plain

MOST_SCRIPTS = 3  # shell scripts that are followed if one calls the next
ENDS = frozenset({"exit", "fi", "esac", "}"})  # words that end a branch of a script, but not a loop
TRAINS = re.compile(r"\.backward\(")
KNOWS_RANKS = re.compile(
    r"init_process_group|init_device_mesh|init_distributed|DistributedDataParallel|DistributedSampler|fully_shard"
    r"|\b(?:GLOBAL_|LOCAL_|NODE_|GROUP_)?RANK\b|WORLD_SIZE|SLURM_(?:PROCID|LOCALID|NODEID|NTASKS)|local_?rank|get_rank"
    r"|PMI_RANK|PMIX_RANK|OMPI_COMM|TORCHELASTIC",
    re.IGNORECASE,
)
NUMBERS = {1: "SIGHUP", 2: "SIGINT", 10: "SIGUSR1", 12: "SIGUSR2", 15: "SIGTERM"}
CATCHABLE = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP")
COLLECTIVES = frozenset(
    "all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all barrier broadcast broadcast_object_list "
    "gather gather_object monitored_barrier reduce reduce_scatter scatter".split()
)
EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit", "SystemExit"})
SAVES = {
    "torch.save": (1, "f"),
    "torch.jit.save": (1, "f"),
    "safetensors.torch.save_file": (1, "filename"),
    "safetensors.torch.save_model": (1, "filename"),
}
RENAMES = frozenset({"os.replace", "os.rename", "os.renames", "os.link", "shutil.move"})
# Calls that write a file under a temporary name, and rename the complete file
ATOMIC = re.compile(r"atomic|[a-z]://|fsspec|s3fs|gcsfs|smart_open", re.I)
MOVES = re.compile(r"\bmv\b")  # as in os.system("mv a b")
TEMPORARY = re.compile(r"(?<![a-z/])te?mp|partial|bytesio|buffer", re.I)  # matches neither /tmp nor `attempt`
OPENS = frozenset({"open", "io.open", "gzip.open", "bz2.open", "lzma.open", "codecs.open"})
MOST_HOPS = 4  # limit of the steps from a name to its value
MOST_TEXTS = 200  # limit of the expressions that a name may stand for, directly or through other names


def read_program(words: Sequence[str], folder: Path) -> ProgramText | None:
    """Returns the facts of the Python files that these words run in `folder`; for a shell script, of all its commands
    together. Returns None if no such file is found, because the words run another program, or an installed program."""
    file = program_of(words, folder)
    return None if file is None else _read_any(file, folder, MOST_SCRIPTS)


def read_script(text: str, folder: Path, file: Path, before: int = 0) -> ProgramText | None:
    """Returns the facts of the lines of `script:`, whose shell survives a signal. `file` contains these lines after
    `before` other lines."""
    return _read_shell("\n" * before + text, folder, file, MOST_SCRIPTS, traps=True)


def read_python_file(file: Path, folder: Path) -> ProgramText:
    """Returns the facts of a Python file, and of the files in the folder that this file imports."""
    sources = sources_from(file, folder)
    text = ProgramText([source.file for source in sources.each], complete=sources.complete, libraries=sources.libraries)
    text.optional |= {*text.files} - sources.needed
    text.unparsed += sources.unparsed
    for add_facts in (add_rank_facts, add_signal_facts, add_save_facts, add_fixed_ports):
        try:
            add_facts(text, sources)
        # Raised for an expression of a thousand terms, a thousand nested calls, or a number with thousands of digits
        except (RecursionError, TooMuch, ValueError):
            text.complete = False
    return _each_once(text)


def _read_any(file: Path, folder: Path, hops: int) -> ProgramText | None:
    if file.suffix == ".py":
        return read_python_file(file, folder)
    try:
        data = read_plain(file).decode()
    except (OSError, ValueError):
        return None
    if data.startswith("#!") and "python" in data.splitlines()[0]:
        return read_python_file(file, folder)
    return _read_shell(data, folder, file, hops)


def _read_shell(text: str, folder: Path, file: Path, hops: int, traps: bool = False) -> ProgramText | None:
    found, shells = [], []
    traps = traps or has_trap(text)
    commands = [*commands_of(text)]
    for at, command in enumerate(commands):
        rest = commands[at + 1 :]
        program = program_of(command.words, folder) if hops else None
        each = _read_any(program, folder, hops - 1) if program else None
        if each is None:
            continue
        found.append(each)
        # Commands before an exec do not count, because they only prepare the program, and take little time.
        if not traps and "exec" not in [command.words[0], *(later.words[0] for later in rest)]:
            is_last = not command.in_background and all(later.words[0] in ENDS for later in rest)
            shells.append(ShellCall(file, command.line, command.text, is_last))
    if not found:
        return None
    ports = [CodePlace(file, line, words) for line, words in fixed_ports(text)]
    whole = ProgramText(fixed_ports=ports, shells=shells)
    for each in found:
        _add(whole, each)
    return _each_once(whole)


def _add(whole: ProgramText, other: ProgramText) -> None:
    whole.complete &= other.complete
    whole.libraries |= other.libraries
    whole.optional |= other.optional
    for name, places in other.handled.items():
        whole.handled.setdefault(name, []).extend(places)
    for name, value in vars(other).items():
        if isinstance(value, list):
            getattr(whole, name).extend(value)


def _each_once(text: ProgramText) -> ProgramText:
    """Removes duplicate places from the lists, and keeps the order in the program."""
    for name, value in vars(text).items():
        if isinstance(value, list):
            setattr(text, name, list(dict.fromkeys(value)))
    text.handled = {name: list(dict.fromkeys(places)) for name, places in text.handled.items()}
    return text


def add_rank_facts(text: ProgramText, sources: Sources) -> None:
    for source in sources.each:
        for number, line in enumerate(source.lines, 1):
            place = CodePlace(source.file, number, line.strip())
            if TRAINS.search(line):
                text.trains.append(place)
            if KNOWS_RANKS.search(line):
                text.knows_ranks.append(place)


@dataclass(frozen=True)
class Handler:
    """A handler that the program sets for one or more signals."""

    source: Source
    call: ast.Call
    signals: frozenset[str]  # names of the signals; all of CATCHABLE if the text has none
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
    if not named and isinstance(node, ast.Name):  # as in: for each in (SIGTERM, SIGUSR1): signal(each, handler)
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
    """Yields the nodes of a function, and the nodes of the program's functions that this function certainly calls."""
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
    """Returns the exit code of sys.exit() and similar calls; `?` if the code is computed, None if the call does not end
    the process."""
    if source.name(call.func) not in EXITS:
        return None
    value = call.args[0] if call.args else ast.Constant(0)
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, int) else 0 if value.value is None else 1
    return "?"


def add_save_facts(text: ProgramText, sources: Sources) -> None:
    renames = any(_is_rename(call, source) for source in sources.each for call in source.calls)
    for source in sources.each:
        for call in source.calls:
            for target in _saved_to(call, source):
                text.saves.append(source.place(call))
                # A rename anywhere in the program may rename this file: in another thread, or in another class.
                if target is not None and not renames and _is_in_place(_written(target, source, sources, call)):
                    text.saves_in_place.append(source.place(call))


def _saved_to(call: ast.Call, source: Source) -> Iterator[ast.expr | None]:
    """Yields the expression for the file of `torch.save(x, path)` and `submit(torch.save, x, path)`; None if the
    expression is not found."""
    if (name := source.name(call.func)) in SAVES:
        yield argument(call, *SAVES[name])
        return
    for at, each in enumerate(call.args):
        if (name := source.name(each)) in SAVES:
            place, keyword = SAVES[name]
            yield argument(call, at + 1 + place, keyword)


def _is_in_place(written: str | None) -> bool:
    return written is not None and not TEMPORARY.search(written) and not ATOMIC.search(written)


def _written(target: ast.expr, source: Source, sources: Sources, call: ast.Call) -> str | None:
    """Returns the text of the expression for a file, and of all values of its names: assigned values, and values that
    callers pass. Returns None if the names have too many values, or if a function other than open() opens the file,
    because that function may rename the file."""
    todo: list[tuple[ast.expr, Source, ast.AST]] = [(target, source, call)]
    seen, texts = {target}, []
    while todo:
        node, where, at = todo.pop()
        sources.spend()
        if isinstance(where.parents.get(node), ast.withitem) and not _opens(node, where):
            return None
        texts.append(ast.unparse(node))
        for each in _stands_for(node, where, sources, at):
            if each[0] not in seen:
                seen.add(each[0])
                todo.append(each)
        if len(seen) > MOST_TEXTS:
            return None
    return " ".join(texts)


def _stands_for(
    node: ast.expr, source: Source, sources: Sources, at: ast.AST
) -> Iterator[tuple[ast.expr, Source, ast.AST]]:
    function = source.function_of(at)
    given = parameters(function) if function is not None else []
    for name in {last_name(each) for each in ast.walk(node)} - {""}:
        yield from ((value, source, at) for value in source.values.get(name, []))
        if function is not None and name in given:
            for where, call in sources.callers(function.name):
                if (value := passed(call, function, source.parents.get(function), name)) is not None:
                    yield value, where, call


def _is_rename(call: ast.Call, source: Source) -> bool:
    """Returns whether the call renames a file: os.replace(a, b), path.rename(b), os.system("mv a b"); not
    "a".replace(...)."""
    if source.name(call.func) in RENAMES:
        return True
    if source.name(call.func).startswith(("os.system", "subprocess.")):
        return bool(MOVES.search(" ".join(map(ast.unparse, call.args))))
    of_a_path = isinstance(call.func, ast.Attribute) and call.func.attr in ("rename", "replace")
    return (of_a_path and len(call.args) + len(call.keywords) == 1) or last_name(call.func) in ("mv", "move")


def _opens(node: ast.AST, source: Source) -> bool:
    """Returns whether the node is a call of open(), or of the method open() of a pathlib.Path."""
    if not isinstance(node, ast.Call):
        return False
    of_a_path = isinstance(node.func, ast.Attribute) and node.func.attr == "open" and _is_path(node.func.value, source)
    return of_a_path or source.name(node.func) in OPENS


def _is_path(node: ast.expr, source: Source, hops: int = MOST_HOPS) -> bool:
    """Returns whether the node is certainly a pathlib.Path."""
    if isinstance(node, ast.Call):
        return source.name(node.func) == "pathlib.Path"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _is_path(node.left, source, hops)
    values = source.values.get(last_name(node), [])
    return bool(hops and len(values) == 1 and _is_path(values[0], source, hops - 1))
