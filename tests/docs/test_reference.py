"""The reference: generated pages are as the code says, and the tables that no code has are complete.

`CLUSTERDP_REFRESH=1 python -m pytest tests/docs/test_reference.py` writes the pages anew; read the diff as a user
would."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from markdown_it import MarkdownIt

from clusterdp import errors
from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.format import layout, skeleton
from clusterdp.config.explain import explanations
from clusterdp.operate.queue import pending_reasons
from clusterdp.operate.why.signatures import SIGNATURES
from clusterdp.rundir import names
from docs.tools import command_line, generate, tables
from docs.tools.markdown import code, escaped
from tests.checkpoint.gang import on_ranks

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clusterdp"
FORMAT = generate.FOLDER / "checkpoint_format.md"
EVENT_NAMED_ELSEWHERE = {"event", "end.event"}  # arguments of functions whose calls are looked at, too
Call = tuple[str, ast.Call, list[Any]]  # name of the function, the call, and its arguments that are constants


@pytest.mark.parametrize("page", generate.PAGES)
def test_reference_page_equals_the_generated_text(page: str) -> None:
    path, text = generate.FOLDER / page, generate.PAGES[page]()
    if os.environ.get("CLUSTERDP_REFRESH"):
        path.write_text(text)
    assert text == path.read_text(), "if the change is meant, refresh the pages and read their diff"


def test_config_page_has_the_explanation_of_every_key() -> None:
    page = generate.config_page().replace("\\|", "|")
    for each in explanations():
        assert f" {code(each.key)}" in page, each.key
        assert escaped(each.text) in page, each.key
        assert code(each.shown_example) in page, each.key


@pytest.mark.parametrize("key", [each.key for each in explanations()])
def test_each_key_stands_on_a_handwritten_page_or_in_a_config(key: str) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "configs").glob("*.yaml")]
    name = re.compile(rf"\b{key.rpartition('.')[2]}\b")
    assert any(name.search(page.read_text()) for page in pages), "nobody finds it"


def test_verbs_page_has_every_verb_and_option() -> None:
    page = generate.verbs_page()
    for one, _ in command_line.verbs():
        section = page.partition(f"## {code(one.prog)}\n")[2].partition("\n#")[0]
        options = {name for action in one._actions for name in action.option_strings} - {"-h", "--help"}
        assert all(re.search(rf"`{name}[ `]", section) for name in options), one.prog


def test_json_page_has_the_keys_of_every_verb_with_json() -> None:
    page = generate.json_page()
    for one, as_json in command_line.verbs():
        if as_json:
            assert f"\n## `{one.prog.partition(' ')[2].replace(' ', '_')}`\n" in page, one.prog


def test_exit_codes_page_has_the_code_of_every_error_class() -> None:
    listed = set(re.findall(r"^\| ([0-9]+) \|", generate.exit_codes_page(), re.MULTILINE))
    assert {str(kind.exit_code) for kind in generate.error_classes()} <= listed


def test_docstring_of_errors_draws_each_class_with_its_exit_code() -> None:
    drawn = re.findall(r"(\w+) +exit (\d+)", errors.__doc__ or "")
    assert dict(drawn) == {kind.__name__: str(kind.exit_code) for kind in generate.error_classes()}


def test_failures_page_has_every_signature_and_reason() -> None:
    grouped = [name for _, group in generate.failure_groups() for name in group]
    assert grouped == [each.name for each in SIGNATURES]
    page = generate.failures_page()
    assert all(f"\n| {code(name)} |" in page for name in pending_reasons.REASONS)


def test_example_of_a_limit_matches_its_own_pattern_first() -> None:
    patterns = [pattern for pattern, *_ in pending_reasons.LIMITS]
    for number, example in enumerate(generate.limits()):
        assert [bool(re.fullmatch(each, example)) for each in patterns].index(True) == number, example


def texts() -> Iterator[str]:
    for key in explanations():
        yield key.text
    for one, _ in command_line.verbs():
        yield from (action.help or "" for action in one._actions)
    for signature in SIGNATURES:
        yield from (signature.cause, signature.remedy)
    yield from ("a_b _c_ *d* <e> & [f](g) \\h --json-x `i|j`", "1. a", "- b", "# c")


def test_escaped_text_is_rendered_with_the_same_characters() -> None:
    for text in texts():
        tokens = MarkdownIt("commonmark").parse(escaped(text))
        assert [token.type for token in tokens][::2] == ["paragraph_open", "paragraph_close"] * bool(text), text
        shown = [child.content for token in tokens for child in token.children or ()]
        assert "".join(shown) == " ".join(text.replace("`", "").split())


# -- the ledger --


def calls(folder: Path) -> Iterator[tuple[Path, Call]]:
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                yield path, (name, node, [getattr(each, "value", None) for each in node.args])


def named_event(name: str, call: ast.Call) -> int | None:
    """Returns the place of the event's name in the arguments of a call; None if the call names no event."""
    if name == "write":
        return 0 if "ledger" in ast.unparse(call.func).lower() else None
    return {"event": 0, "resubmit": 0, "End": 1, "cls": 1, "_mark": 2}.get(name)


def events() -> Iterator[tuple[str, set[str], str]]:
    """Yields (event, keys that the call names, place) of each call that writes an event."""
    for path, (name, call, given) in calls(PACKAGE):
        at = named_event(name, call)
        if "fakeslurm" in path.parts or at is None or len(given) <= at or (name == "cls" and path.stem != "decisions"):
            continue
        where = f"{path.relative_to(ROOT)}:{call.lineno}"
        if not isinstance(given[at], str):
            assert ast.unparse(call.args[at]) in EVENT_NAMED_ELSEWHERE, f"{where}: the event has no name here"
            continue
        keys = {each.arg for each in call.keywords if each.arg} - {"writer", "durably"}
        for part in (each for each in call.args if isinstance(each, ast.Dict)):
            keys |= {key.value for key in part.keys if isinstance(key, ast.Constant)}
        yield str(given[at]), keys, where


def test_table_of_events_lists_exactly_those_of_the_source() -> None:
    found = list(events())
    assert {event for event, _, _ in found} == set(tables.EVENTS)
    for event, keys, where in found:
        assert keys <= set(tables.EVENTS[event].keys.split()), f"{where}: {event}"


# -- the run folder --


def listed() -> set[str]:
    return {name.strip(",/") for each in tables.FILES for name in each.split()}


def digits_as_zeros(name: str) -> str:
    return re.sub(r"[0-9]", "0", name)


def test_tables_of_files_list_exactly_those_of_the_docstrings() -> None:
    assert set(tables.FILES) == {name for _, name, _ in generate.listed_files(generate.rundir)}
    assert set(tables.SWEEP_FILES) == {name for _, name, _ in generate.listed_files(generate.sweep)}


@pytest.mark.parametrize("owner", [names.RunDir(Path()), names.Attempt("7.0", Path())], ids=["run", "attempt"])
def test_table_of_files_lists_every_name_of_rundir(owner: Any) -> None:
    examples = {"rank": 0, "node": "n1", "name": "7.0"}
    found = [value.name for value in vars(type(owner)).values() if isinstance(value, names._Within)]
    for name, value in vars(type(owner)).items():
        if inspect.isfunction(value) and not name.startswith("_") and len(inspect.signature(value).parameters) == 2:
            made = getattr(owner, name)(*(examples[each] for each in list(inspect.signature(value).parameters)[1:]))
            found.append(str(getattr(made, "path", made)))
    assert len(found) > 10
    known = {digits_as_zeros(name) for name in listed()} | {"attempts/0.0"}
    for name in map(digits_as_zeros, found):
        assert name in known or any(each.startswith(f"{name}/") for each in known), name


def test_table_of_files_lists_every_file_of_the_batch_program() -> None:
    found = set()
    for path, (name, call, given) in calls(PACKAGE / "batch"):
        at = {"note": 0, "note_of": 1, "mark": 0, "file": 0, "is_marked": 0}.get(name)
        if at is None or len(given) <= at or isinstance(call.func, ast.Name):
            continue
        module = importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
        word = given[at] if isinstance(given[at], str) else getattr(module, ast.unparse(call.args[at]), None)
        found |= {word} if isinstance(word, str) else set()
    assert {"outcome", "hosts", "rescue", "cold", "next", "stop"} <= found
    assert found <= listed() | {name.partition("/")[0] for name in listed()}


def test_table_of_files_lists_every_file_of_a_kept_run() -> None:
    known = [re.sub(r"<\w+>", r"[\\w.-]+", re.sub(r"0{3,}\d+", r"\\d+", re.escape(name))) for name in tables.FILES]
    patterns = "|".join(name + (".*" if name.endswith("/") else "") for each in known for name in each.split("\\ "))
    (archive,) = sorted((ROOT / "tests/operate/kept_runs").glob("*.tar.xz"))[-1:]
    with tarfile.open(archive) as tar:
        files = [each.name.removeprefix("run/") for each in tar.getmembers() if each.isfile()]
    assert len(files) > 20
    for file in files:
        inner = re.sub(r"^attempts/[\w.]+/", "", file)
        assert re.fullmatch(patterns, inner), file


# -- the checkpoint format --


def example() -> dict[str, Any]:
    """Returns the names that the program on the page defines."""
    found: dict[str, Any] = {}
    exec(FORMAT.read_text().partition("```python\n")[2].partition("```")[0], found)
    assert not any(name == "clusterdp" or "torch" in name for name in found)
    return found


def save(rank: int, size: int, folder: str) -> dict[str, numpy.ndarray[Any, Any]]:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3, bias=False))
    optimizer = torch.optim.Adam(model.parameters())
    half = torch.arange(5).bfloat16()
    checkpointer = Checkpointer(folder, {"model": model, "optimizer": optimizer, "half": half})
    checkpointer.save(200)
    model(torch.ones(1, 7)).sum().backward()
    optimizer.step()
    checkpointer.save(100)  # the newest commit
    tensors = {f"model/{name}": tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    moments = {
        f"optimizer/state/{number}/exp_avg": optimizer.state[p]["exp_avg"]
        for number, p in enumerate(model.parameters())
    }
    return {**tensors, **{name: moment.numpy().copy() for name, moment in moments.items()}}


def save_on_nodes(rank: int, size: int, folder: str, nodes: str) -> dict[str, numpy.ndarray[Any, Any]]:
    os.environ["SLURMD_NODENAME"] = nodes[rank]
    return save(rank, size, folder)


@pytest.fixture(scope="module", params=["abc", "aba"], ids=["files of ranks", "a file of a node"])
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, numpy.ndarray[Any, Any]]]:
    """The folder of checkpoints of three ranks, and some of the newest one's tensors."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, on_ranks(3, save_on_nodes, str(folder), request.param)[0]


def test_checkpoint_format_example_reads_a_checkpoint_of_three_ranks(saved: Any) -> None:
    folder, expected = saved
    step, state, tensors = example()["read_checkpoint"](folder)
    assert step == 100
    assert len(expected) == 6
    for name, array in expected.items():
        assert tensors[name].tobytes() == array.tobytes(), name
    (name,) = [name for name in tensors if name.startswith("half")]
    assert tensors[name].tolist() == [0x0000, 0x3F80, 0x4000, 0x4040, 0x4080]
    assert state["model"]["$module"]["0.weight"] == {"$tensor": "model/0.weight"}


@pytest.mark.parametrize("pattern", ["*-[rn]000?*[!l].safetensors", "MANIFEST.*.json"])
def test_checkpoint_format_example_refuses_damaged_files(saved: Any, pattern: str) -> None:
    folder, _ = saved
    for file in folder.glob(f"step_00000100/{pattern}"):
        data = file.read_bytes()
        file.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        with pytest.raises((AssertionError, ValueError)):
            example()["read_checkpoint"](folder)
        file.write_bytes(data)
    assert example()["read_checkpoint"](folder)[0] == 100


def test_saved_tensors_have_the_layout_of_the_checkpoint_format_page(saved: Any) -> None:
    where, head, body = example()["newest_manifest"](saved[0])
    end = 0
    for name in sorted(body["index"]):
        offset, size, _, _ = body["index"][name]
        assert offset == end, name
        end = -(-(offset + size) // 64) * 64
    cuts = [*(rank * end // 3 // 64 * 64 for rank in range(3)), end]
    for rank in range(3):
        name, file = f"{head['data']}-r{rank:04d}-of-0003.safetensors", f"{head['data']}-n0000.safetensors"
        size, at = cuts[rank + 1] - cuts[rank], body["files"][name].get("at")
        data = (where / (file if at else name)).read_bytes()
        assert int.from_bytes(data[:8], "little") == 4088
        tensor = json.loads(data[8:4096])[f"slice-r{rank:04d}" if at else "slice"]
        assert (tensor["dtype"], tensor["shape"]) == ("U8", [size])
        assert at is None or at == [0, 4096 + tensor["data_offsets"][0]]
        assert (len(data) == body["nodes"][0]) if at else (len(data) - 4096 == size > 0)
    assert head["bytes"] == sum(record["size"] for record in body["files"].values())
    parts = {name for name, record in body["files"].items() if "at" in record}
    files = {*body["files"]} - parts | {f"{head['data']}-n0000.safetensors"} & parts
    assert {path.name for path in where.iterdir()} == files | {f"MANIFEST.{head['token']}.json"}


def test_checkpoint_format_page_has_the_numbers_tags_and_dtypes_of_the_code() -> None:
    page = FORMAT.read_text()
    assert f"Each begins at the next multiple of {layout.ALIGN} bytes" in page
    assert f"of each block of {layout.BLOCK} bytes" in page
    assert f"Its data begins at byte {layout.HEADER}" in page
    dtypes = page.partition("The dtypes are torch's names: ")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", dtypes) == list(layout.ITEM_SIZES)
    tags = set(re.findall(r'"(\$\w+)"', inspect.getsource(skeleton)))
    assert tags == set(re.findall(r'"(\$\w+)"', page))
