"""Saves and loads: under which name, and whether a kill in the middle would leave a torn file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from clusterdp.check.program.opened_paths import opens
from clusterdp.check.program.program_text import ProgramText
from clusterdp.check.program.source import Source, argument, last_name, parameters, passed
from clusterdp.check.program.sources import Sources

SAVES = {
    "torch.save": (1, "f"),
    "torch.jit.save": (1, "f"),
    "safetensors.torch.save_file": (1, "filename"),
    "safetensors.torch.save_model": (1, "filename"),
}
# A name that begins so may load a state; those of these modules read configs and data.
LOADS = re.compile(r"(?:\w*_)?(?:load|resume|restore|set_state_dict|from_pretrained|safe_open)(?!er|ing)\w*", re.I)
LOAD_NO_STATE = re.compile(r"(?:json|yaml|toml|tomllib|csv|datasets|dotenv|omegaconf|configparser|hydra)\b")
RESUMING_KEYWORDS = frozenset({"resume_from_checkpoint", "ckpt_path", "resume"})
RENAMES = frozenset({"os.replace", "os.rename", "os.renames", "os.link", "shutil.move"})
# Appears under its name when it is complete.
ATOMIC = re.compile(r"atomic|[a-z]://|fsspec|s3fs|gcsfs|smart_open", re.I)
MOVES = re.compile(r"\bmv\b")  # os.system("mv a b")
TEMPORARY = re.compile(r"(?<![a-z/])te?mp|partial|bytesio|buffer", re.I)  # but for /tmp and `attempt`
MOST_TEXTS = 200  # that a name may stand for, one by another


def add_save_facts(text: ProgramText, sources: Sources) -> None:
    renames = any(_is_rename(call, source) for source in sources.each for call in source.calls)
    for source in sources.each:
        for call in source.calls:
            if _trains_anew(call, source):
                text.trains_anew.append(source.place(call))
            if _loads(call, source, sources) or _resumes_by_keyword(call):
                text.resumes.append(source.place(call))
            for target in _saved_to(call, source):
                text.saves.append(source.place(call))
                # A rename that stands elsewhere may be of this file: in another thread, or in a class of its own.
                if target is not None and not renames and _is_in_place(_written(target, source, sources, call)):
                    text.saves_in_place.append(source.place(call))


def _saved_to(call: ast.Call, source: Source) -> Iterator[ast.expr | None]:
    """What names the file of `torch.save(x, path)`, and of `submit(torch.save, x, path)`; None if that is not seen."""
    if (name := source.name(call.func)) in SAVES:
        yield argument(call, *SAVES[name])
        return
    for at, each in enumerate(call.args):
        if (name := source.name(each)) in SAVES:
            place, keyword = SAVES[name]
            yield argument(call, at + 1 + place, keyword)


def _loads(call: ast.Call, source: Source, sources: Sources) -> bool:
    """Not of a function of the program: what it loads stands in its body."""
    name = last_name(call.func)
    may_load = LOADS.fullmatch(name) and not LOAD_NO_STATE.match(source.name(call.func))
    return bool(may_load) and not sources.functions(name, source)


def _is_in_place(written: str | None) -> bool:
    return written is not None and not TEMPORARY.search(written) and not ATOMIC.search(written)


def _resumes_by_keyword(call: ast.Call) -> bool:
    return any(
        each.arg in RESUMING_KEYWORDS
        and not (isinstance(each.value, ast.Constant) and each.value.value in (None, False))
        for each in call.keywords
    )


def _trains_anew(call: ast.Call, source: Source) -> bool:
    """`trainer.train()` of Hugging Face: without resume_from_checkpoint it begins at step 0."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "train" or call.args or call.keywords:
        return False
    values = [call.func.value, *source.values.get(last_name(call.func.value), [])]
    made = [source.name(each.func) for each in values if isinstance(each, ast.Call)]
    return any(re.fullmatch(r"(?:transformers|trl)\..*Trainer", name) for name in made)


def _written(target: ast.expr, source: Source, sources: Sources, call: ast.Call) -> str | None:
    """What names the file, as it is written, and all that its names may stand for: values, and what callers pass. None
    if that is too much to be followed, or is opened by something else than open(), which may rename it."""
    todo: list[tuple[ast.expr, Source, ast.AST]] = [(target, source, call)]
    seen, texts = {target}, []
    while todo:
        node, where, at = todo.pop()
        sources.spend()
        if isinstance(where.parents.get(node), ast.withitem) and not opens(node, where):
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
    """os.replace(a, b), path.rename(b), path.replace(b), os.system("mv a b"); but not "a".replace("b", "c")."""
    if source.name(call.func) in RENAMES:
        return True
    if source.name(call.func).startswith(("os.system", "subprocess.")):
        return bool(MOVES.search(" ".join(map(ast.unparse, call.args))))
    of_a_path = isinstance(call.func, ast.Attribute) and call.func.attr in ("rename", "replace")
    return (of_a_path and len(call.args) + len(call.keywords) == 1) or last_name(call.func) in ("mv", "move")
