"""Checkpoints that somebody made up, with every checksum right: refused by name, nothing run, nothing allocated, no
hang, and the one before is used."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterdp.checkpoint import Checkpointer, list_checkpoints
from clusterdp.checkpoint.format.checksum import checksums
from clusterdp.checkpoint.format.layout import BLOCK, HEADER, pack_checksums, slice_name
from clusterdp.checkpoint.load import choose
from tests.checkpoint.gang import Gang
from tests.checkpoint.training import Counter

TB, HUGE = 1 << 40, 1 << 36
ROOM = 1 << 30  # bytes of address space that a restore may ask for
Attack = Callable[[Path], None]


def state(value: float) -> dict[str, Any]:
    shared, own = Counter(), Counter(per_rank=True)
    shared.state = {"tensor": torch.full((1000,), value), "value": value}
    own.state = {"mine": torch.full((3,), value)}
    return {"shared": shared, "own": own}


class Payload:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def one(step: Path, what: str) -> Path:
    (path,) = step.glob(
        {"manifest": "MANIFEST*", "slice": "*-of-0001*", "rank": "*r0000.json", "local": "*local*"}[what]
    )
    return path


FILES = ("manifest", "slice", "rank", "local")


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def forge(
    step: Path,
    body: Callable[[str], str] = lambda text: text,
    head: Callable[[str], str] = lambda text: text,
) -> None:
    """Change the text of a manifest's lines, and make all its digests right."""
    path = one(step, "manifest")
    first, rest = path.read_bytes().split(b',\n"body": ', 1)
    fields = json.loads(first.removeprefix(b'{"head": '))
    changed = body(rest[:-2].decode()).encode()
    fields |= {"body_bytes": len(changed), "body_digest": _digest(changed)}
    del fields["digest"]
    line = head(json.dumps(fields, separators=(",", ":"))).encode()
    sealed = line[:-1] + b',"digest":"' + _digest(line).encode() + b'"}'
    path.write_bytes(b'{"head": ' + sealed + b',\n"body": ' + changed + b"}\n")


def edit(change: Callable[[dict[str, Any]], None]) -> Attack:
    """Of the manifest's second line, as JSON."""

    def attack(step: Path) -> None:
        def edited(text: str) -> str:
            content = json.loads(text)
            change(content)
            return json.dumps(content, separators=(",", ":"))

        forge(step, edited)

    return attack


def edit_head(**fields: Any) -> Attack:
    return lambda step: forge(step, head=lambda text: json.dumps(json.loads(text) | fields, separators=(",", ":")))


def raw(old: str, new: str, *, head: bool = False) -> Attack:
    """In the text of a line."""

    def replaced(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return lambda step: forge(step, **{"head" if head else "body": replaced})


def claim(what: str, size: int) -> Attack:
    def change(body: dict[str, Any]) -> None:
        name = next(name for name in body["files"] if name.endswith(what))
        body["files"][name] = {"size": size, "xxh3": "0" * 16 * -(-size // BLOCK)}

    return edit(change)


def a_huge_state(body: dict[str, Any]) -> None:
    (name,) = (name for name in body["files"] if "-of-" in name)
    body["files"][name] = {"size": HEADER + HUGE, "xxh3": "0" * 16 * (1 + HUGE // BLOCK)}
    body["index"] = {"shared/tensor": [0, HUGE, "float32", [HUGE // 4]]}


def many_ranks(count: int, *, sharded: bool) -> Attack:
    more = {"world_size": count} | ({"format": 2} if sharded else {})

    def attack(step: Path) -> None:
        if sharded:
            edit(lambda body: body.update(chunks={}))(step)
        edit_head(**more)(step)

    return attack


def rank_file(new: Callable[[bytes], bytes]) -> Attack:
    """Another one in its place, and its record to match."""

    def attack(step: Path) -> None:
        path = one(step, "rank")
        path.write_bytes(data := new(path.read_bytes()))
        record = {"size": len(data), "xxh3": pack_checksums(checksums(memoryview(data)))}
        edit(lambda body: body["files"].update({path.name: record}))(step)

    return attack


def rank_json(change: Callable[[dict[str, Any]], None]) -> Attack:
    def new(data: bytes) -> bytes:
        content = json.loads(data)
        change(content)
        return json.dumps(content).encode()

    return rank_file(new)


def in_place_of(what: str, put: Callable[[Path], object]) -> Attack:
    def attack(step: Path) -> None:
        path = one(step, what)
        path.rename(path.with_name("held"))
        put(path)

    return attack


def of_another_run(step: Path) -> None:
    """Its manifest, without its files."""
    other = step.parent / "other"
    token = Checkpointer(other, state(9.0)).save(2).token
    one(step, "manifest").unlink()
    shutil.copy(one(other / step.name, "manifest"), step)
    assert one(step, "manifest").name == f"MANIFEST.{token}.json"
    shutil.rmtree(other)


def under_this_name(step: Path) -> None:
    other = step.parent / "other"
    Checkpointer(other, state(9.0)).save(2)
    shutil.copy(one(other / step.name, "manifest"), one(step, "manifest"))
    shutil.rmtree(other)


DEEP = "[" * 200_000 + "]" * 200_000

ATTACKS: dict[str, Attack] = {
    **{f"a pickle for the {f}": in_place_of(f, lambda p: p.write_bytes(pickle.dumps(Payload()))) for f in FILES},
    **{f"torch.save for the {f}": in_place_of(f, lambda p: torch.save(Payload(), p)) for f in FILES},
    **{f"a pipe for the {f}": in_place_of(f, os.mkfifo) for f in FILES},
    **{f"a folder for the {f}": in_place_of(f, Path.mkdir) for f in FILES},
    **{f"a link to the {f}": in_place_of(f, lambda p: p.symlink_to("held")) for f in FILES},
    **{f"a link to /dev/zero for the {f}": in_place_of(f, lambda p: p.symlink_to("/dev/zero")) for f in FILES},
    "a pickle that the manifest vouches for": rank_file(lambda _: pickle.dumps(Payload())),
    "nothing that the manifest vouches for": rank_file(lambda _: b""),
    "a file above": edit(lambda body: body["files"].update({"../../x": {"size": 1, "xxh3": "0" * 16}})),
    "files of another folder": edit_head(data="../0123456789ab-0001"),
    "a token that is a path": edit_head(token="../../x"),
    "a slice that is huge": claim("-of-0001.safetensors", HUGE),
    "a rank file that is huge": claim("r0000.json", HUGE),
    "a local file that is huge": claim("local.safetensors", HUGE),
    "a state that is huge": edit(a_huge_state),
    "own tensors of a terabyte": rank_json(lambda d: d.update(index={"rng/torch": [0, TB, "uint8", [TB]]})),
    "own tensors that no file has": rank_json(
        lambda d: d["index"].update({"zz": [d["index"]["rng/torch"][0] + 5120, 64, "uint8", [64]]})
    ),
    "a manifest of many gigabytes": lambda step: os.truncate(one(step, "manifest"), 1 << 35),
    "a thousand million ranks": many_ranks(10**9, sharded=False),
    "a thousand million sharded ranks": many_ranks(10**9, sharded=True),
    "ranks beyond all integers": many_ranks(10**300, sharded=True),
    "a size that is negative": edit(lambda body: [r.update(size=-1, xxh3="") for r in body["files"].values()]),
    "a size that is a fraction": edit(lambda body: [r.update(size=float(r["size"])) for r in body["files"].values()]),
    "a size that is a text": edit(lambda body: [r.update(size=str(r["size"])) for r in body["files"].values()]),
    "checksums that are none": edit(lambda body: [r.update(xxh3="x" * 16) for r in body["files"].values()]),
    "a negative shape": edit(lambda body: body["index"].update({"shared/tensor": [0, 4000, "float32", [-1000]]})),
    "a shape that overflows": edit(lambda body: body["index"].update({"x": [4032, 0, "float32", [0, 1 << 200]]})),
    "offsets that lie": edit(lambda body: body["index"].update({"shared/tensor": [64, 4000, "float32", [1000]]})),
    "tensors on top of each other": edit(lambda body: body["index"].update({"x": [0, 4000, "float32", [1000]]})),
    "a dtype that is code": edit(lambda body: body["index"].update({"shared/tensor": [0, 4000, "os.system", [1000]]})),
    "an index that is a list": edit(lambda body: body.update(index=[])),
    "a tensor that is not there": edit(lambda body: body.update(state={"shared": {"$tensor": "shared/none"}})),
    "a tag that nobody knows": edit(lambda body: body.update(state={"shared": {"$pickle": "gASVAAAA"}})),
    "a key that cannot be one": edit(lambda body: body.update(state={"shared": {"$dict": [[[], 1]]}})),
    "pairs that are none": edit(lambda body: body.update(state={"shared": {"$dict": [1]}})),
    "a tensor in meta": edit(lambda body: body.update(meta={"a": {"$tensor": "shared/tensor"}})),
    "a state that is nested too deeply": raw('"meta":', f'"x":{DEEP},"meta":'),
    "a rank file that is nested too deeply": rank_file(lambda data: data[:-1] + f',"x":{DEEP}}}'.encode()),
    "a state deeper than Python's stack": edit(lambda body: body.update(meta=nested(900))),
    "a head that is nested too deeply": raw('"step":', f'"x":{"[" * 1500}{"]" * 1500},"step":', head=True),
    "NaN": raw('"meta":{', '"meta":{"x":NaN'),
    "minus Infinity": raw('"meta":{', '"meta":{"x":-Infinity'),
    "Infinity by another name": raw('"meta":{', '"meta":{"x":1e999'),
    "NaN in a rank file": rank_file(lambda data: data[:-1] + b',"x":NaN}'),
    "a time that is NaN": raw('"committed_at":', '"committed_at":NaN,"was":', head=True),
    "a time that no calendar has": edit_head(committed_at=1e300),
    "an order that is a text": edit_head(order="9"),
    "an order that is true": edit_head(order=True),
    "an order that is a fraction": edit_head(order=2.5),
    "an order beyond all integers": edit_head(order=10**400),
    "bytes that are a list": edit_head(bytes=[1]),
    "an attempt that is a number": edit_head(attempt=7),
    "a step that is true": edit_head(step=True),
    "a key twice in the head": raw('"order":', '"order":1,"order":', head=True),
    "a key twice in the body": raw('"meta":', '"meta":{},"meta":'),
    "a key twice in a rank file": rank_file(lambda data: data[:-1] + b',"index":{}}'),
    "a manifest of another run": of_another_run,
    "a manifest of another run under this name": under_this_name,
}


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = [value]
    return value


def survive(rank: int, size: int, folder: str) -> dict[str, list[str]]:
    """What was said about each attack, and what it has cost."""
    os.chdir(folder)
    logging.disable()
    run: list[str] = []
    sys.addaudithook(lambda event, args: run.append(event) if event in ("pickle.find_class", "os.system") else None)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 1 << 30
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, resource.RLIM_INFINITY))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wrong: dict[str, list[str]] = {}
    for name, attack in ATTACKS.items():
        scratch = Path(folder, "scratch")
        shutil.copytree(Path(folder, "good"), scratch)
        attack(scratch / "step_00000002")
        said, live = [], state(0.0)
        try:
            restored = Checkpointer(scratch, live).restore()
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        else:
            assert restored is not None
            if (restored.step, live["shared"].state["value"], *restored.skipped[1:]) != (1, 1.0):
                said.append(f"step {restored.step}, value {live['shared'].state['value']}, {restored.skipped}")
            elif "step_00000002/" not in restored.skipped[0]:
                said.append(f"it is not named: {restored.skipped}")
        if said or run or Path("pwned").exists():
            wrong[name] = [*said, *run]
        shutil.rmtree(scratch)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if sys.platform == "linux" and grown > 300:
        wrong["memory"] = [f"{grown:.0f} MiB"]
    return wrong


@pytest.mark.filterwarnings("ignore")
def test_forged_checkpoint_is_named_and_the_previous_one_is_restored(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        Checkpointer(tmp_path / "good", state(value)).save(int(value))
    with Gang(1, survive, str(tmp_path)) as gang:
        (wrong,) = gang.results()
    assert wrong == {}, "\n".join(f"{name}: {'; '.join(said)[:600]}" for name, said in wrong.items())


def test_forged_manifest_with_valid_content_is_accepted(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        Checkpointer(tmp_path, state(value)).save(int(value))
    step = tmp_path / "step_00000002"
    forge(step)
    rank_json(lambda content: None)(step)
    edit(lambda body: None)(step)
    edit_head(attempt="7")(step)
    live = state(0.0)
    restored = Checkpointer(tmp_path, live).restore()
    assert restored is not None
    assert (restored.step, restored.skipped, live["shared"].state["value"]) == (2, (), 2.0)
    assert list_checkpoints(tmp_path)[-1].attempt == "7"


@pytest.mark.parametrize("name", ["MANIFEST.*.json", slice_name("*", 0, 1)])
def test_restore_does_not_retry_a_checkpoint_file_replaced_by_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for value in (1.0, 2.0):
        Checkpointer(tmp_path, state(value)).save(int(value))
    (file,) = (tmp_path / "step_00000002").glob(name)
    file.unlink()
    os.mkfifo(file)
    pauses: list[float] = []
    monkeypatch.setattr(choose, "time", SimpleNamespace(sleep=pauses.append))
    restored = Checkpointer(tmp_path, state(0.0)).restore()
    assert restored is not None
    assert (restored.step, pauses) == (1, [])
