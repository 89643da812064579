"""What a save does to files, learned from the events of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterdp.rehearse.observe.file_events import FileEvent
from clusterdp.rehearse.observe.save_shape import (
    SaveShape,
    Strike,
    is_state,
    learn,
    named,
    own_name,
    pointed_at,
    save_until,
    with_pointers,
)
from clusterdp.rundir import RunDir


def events_of(*saves: list[tuple[str, ...]], every_s: float = 10.0) -> list[FileEvent]:
    """A save every so often, whose events (kind, path, to) are 10 ms apart."""
    return [
        FileEvent(*event, at=number * every_s + i / 100, step=10 * number)
        for number, save in enumerate(saves, 1)
        for i, event in enumerate(save)
    ]


def moments(shape: SaveShape) -> list[tuple[str, str, str]]:
    return [(each.when, each.kind, each.path) for each in shape.strikes if each.rank is None]


def test_kill_moments_of_a_renamed_file_cover_its_write_and_rename() -> None:
    shape = learn(events_of(*[[("write", "a.tmp"), ("rename", "a.tmp", "a.pt")]] * 3), {"a.tmp": 9})
    assert moments(shape) == [
        ("first bytes", "write", "a.tmp"),
        ("middle", "write", "a.tmp"),
        ("before", "rename", "a.tmp"),
        ("after", "rename", "a.tmp"),
    ]


def test_kill_moments_of_a_file_saved_in_place_cover_only_its_write() -> None:
    shape = learn(events_of(*[[("write", "last.pt")]] * 3), {"last.pt": 9})
    assert moments(shape) == [("first bytes", "write", "last.pt"), ("middle", "write", "last.pt")]


def test_kill_moments_include_the_gap_between_deletion_and_new_write() -> None:
    shape = learn(events_of([("write", "a.pt")], *[[("delete", "a.pt"), ("write", "a.pt")]] * 2), {"a.pt": 9})
    assert moments(shape)[0] == ("before", "write", "a.pt")


@pytest.mark.parametrize("random", [(".tmpXk29aQ", ".tmpaB1cD2"), ("tmpab_2cd1", "tmp8u_h__2q"), ("3fa9c1", "b2e")])
def test_random_temporary_file_names_share_one_key(random: tuple[str, str]) -> None:
    saves = [[("write", name), ("rename", name, "a.pt")] for name in random]
    shape = learn(events_of(*saves), dict.fromkeys(random, 9))
    assert shape.key(random[0]) == shape.key(random[1]) == shape.strikes[0].path
    assert shape.key("a.pt") == "a.pt"


def test_numbered_files_share_one_key_with_the_smallest_size() -> None:
    saves = [[("write", f"out/step_{step}/rank{step % 2}.pt")] for step in (10, 20, 30)]
    shape = learn(events_of(*saves), {save[0][1]: 100 - i for i, save in enumerate(saves)})
    assert shape.sizes == {"out/step_#/rank#.pt": 98}


def test_file_committed_in_the_background_belongs_to_its_save() -> None:
    saves = []
    for step in (10, 20):
        at, folder = float(step), f"step_{step}"
        saves += [FileEvent("write", f"{folder}/a.bin", at=at, step=step)]
        saves += [FileEvent("write", "log.json", at=at + 2, step=step + 1)]
        saves += [FileEvent("write", f"{folder}/done.json", at=at + 3, step=step + 2)]
    shape = learn(saves, {"step_10/a.bin": 9, "step_20/a.bin": 9})
    assert ("before", "write", "step_#/done.json") in moments(shape)
    assert not [each for each in shape.strikes if "log" in each.path]


def test_late_rename_of_a_large_file_belongs_to_its_save() -> None:
    at = [FileEvent("write", "a.tmp", at=1, step=1), FileEvent("rename", "a.tmp", "a.pt", at=9, step=4)]
    assert moments(learn(at, {"a.tmp": 9}))[-1] == ("after", "rename", "a.tmp")


def test_save_until_returns_the_interrupted_save_from_its_first_write() -> None:
    before = [FileEvent("write", "a.tmp", at=1, step=1), FileEvent("rename", "a.tmp", "a.pt", at=1.1, step=1)]
    save = [FileEvent("write", "a.tmp", at=5, step=3), FileEvent("rename", "a.tmp", "a.pt", at=9, step=4)]
    assert save_until([*before, *save]) == save


def test_save_of_the_best_model_gets_no_kill_moments() -> None:
    saves = [[("write", "last.pt")], [("write", "best.pt")], [("write", "last.pt")]]
    shape = learn(events_of(*saves), {"last.pt": 9, "best.pt": 9})
    assert {each.path for each in shape.strikes} == {"last.pt"}


def test_appending_write_matches_no_kill_moment() -> None:
    shape = learn(events_of(*[[("write", "last.pt")]] * 2), {"last.pt": 9})
    assert shape.is_at(shape.strikes[0], FileEvent("write", "last.pt"))
    assert not shape.is_at(shape.strikes[0], FileEvent("write", "last.pt", appends=True))


def test_program_saving_only_text_files_gets_kill_moments() -> None:
    assert moments(learn(events_of(*[[("write", "state.json")]] * 2), {}))


def test_name_part_random_in_each_run_becomes_a_wildcard_in_the_key() -> None:
    one, two = (learn(events_of(*[[("write", f"{name}-r0.pt")]] * 2), {f"{name}-r0.pt": 9}) for name in ("abx", "cdx"))
    both = one.in_both(two)
    assert both.key("efx-r1.pt") == both.strikes[0].path == "*-r#.pt"
    assert both.sizes == {"*-r#.pt": 9}


def test_few_selects_five_kill_moments_spread_over_the_save() -> None:
    strikes = tuple(Strike("rename", str(i), "", "first bytes" if i % 3 == 0 else "middle") for i in range(30))
    few = SaveShape(strikes=strikes).few()
    assert (len(few), few[0].path, few[-1].path) == (5, "1", "29")
    assert {each.when for each in few} == {"middle"}


def test_few_has_every_fatal_kill_moment_and_deletions_last() -> None:
    save = [("write", "a.tmp"), ("rename", "a.tmp", "a.pt"), ("write", "b.pt"), ("write", "LAST"), ("delete", "old.pt")]
    shape = learn(events_of(*[save] * 4), {"a.tmp": 9, "b.pt": 9})
    fatal = [("before", "b.pt"), ("middle", "b.pt"), ("before", "LAST"), ("middle", "LAST"), ("middle", "a.tmp")]
    assert [(each.when, each.path) for each in shape.few()] == fatal
    assert [(each.when, each.path) for each in shape.strikes if each.is_fatal] == fatal
    simple = learn(events_of(*[[save[0], save[1], save[-1]]] * 4), {"a.tmp": 9})
    assert [(each.when, each.path) for each in simple.few()] == [
        ("middle", "a.tmp"),
        ("before", "a.tmp"),
        ("before", "*.pt"),
        ("after", "*.pt"),
        ("middle", "a.tmp"),
    ]


def test_kill_moments_after_a_deletion_and_before_the_new_file_are_fatal() -> None:
    save = [("delete", "latest"), ("symlink", "a", "latest")]
    shape = learn(events_of(*[[("write", "a.pt"), *save]] * 3), {"a.pt": 9})
    assert ("before", "symlink") in [(each.when, each.kind) for each in shape.strikes if each.is_fatal]


def test_kill_moments_are_learned_from_a_usual_save_not_the_last() -> None:
    usual = [("delete", "old.pt"), ("write", "a.pt")]
    saves = [usual[1:], usual, usual, [*usual, ("write", "final.pt")]]
    shape = learn(events_of(*saves), {"a.pt": 9, "final.pt": 9})
    assert {each.path for each in shape.strikes} == {"a.pt"}
    assert ("before", "write", "a.pt") in moments(shape)


def test_kill_moments_include_one_of_a_single_saving_rank() -> None:
    """Rank 0 finishes the save: it may do so without the files of rank 1."""
    saves = [[("write", "rank0.pt"), ("write", "rank1.pt"), ("write", "LAST")]] * 3
    events = [replace(event, rank=int(event.path == "rank1.pt")) for event in events_of(*saves)]
    shape = learn(events, {"rank0.pt": 9, "rank1.pt": 9})
    [alone] = [each for each in shape.strikes if each.rank is not None]
    assert (alone.rank, alone.when, alone.is_fatal) == (1, "middle", True)
    assert shape.is_at(alone, events[1]) and not shape.is_at(alone, events[0])
    assert alone in shape.few()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("{run}/code/out/a.pt", "code/out/a.pt"),
        ("{run}/checkpoints/step_1/x", "checkpoints/step_1/x"),
        ("{run}/events/7.0-rank0.jsonl", ""),
        ("{run}/code/__pycache__/a.pyc", ""),
        ("/tmp/gan-7/a.pt", "/tmp/gan-7/a.pt"),
        ("/home/me/.cache/torch/kernel.so", ""),
        ("/tmp/5i_k2kgc", ""),
        ("/tmp/tmp9oae1cb5", "/tmp/tmp9oae1cb5"),
    ],
)
def test_own_name_ignores_run_records_caches_and_tempfile_probes(tmp_path: Path, path: str, name: str) -> None:
    run = RunDir(tmp_path / "run")
    assert own_name(run, path.format(run=run.path)) == name


def test_file_renamed_from_a_cache_keeps_its_old_path(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    moved = named(run, FileEvent("rename", "/home/me/.cache/x", f"{run.code}/a.pt"))
    assert moved and (moved.path, moved.to) == ("/home/me/.cache/x", "code/a.pt")


def test_state_files_include_learned_binary_files_and_checkpoint_names(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    shape = learn(events_of(*[[("write", "code/net.dat"), ("write", "code/latest.txt")]] * 2), {"code/net.dat": 9})
    assert is_state(run, shape, "net.dat")
    assert not is_state(run, shape, "latest.txt") and not is_state(run, shape, "rows.dat")
    assert is_state(run, SaveShape(), "epoch_3.pt")


@pytest.mark.parametrize("content", ["step_20", '{"checkpoint": "step_20"}', None, "20", "a.pt"])
def test_latest_file_is_a_pointer_only_if_it_names_a_save_folder(tmp_path: Path, content: str | None) -> None:
    saves = [
        [
            ("write", f"code/step_{step}/a.pt"),
            ("write", "code/latest.tmp"),
            ("rename", "code/latest.tmp", "code/latest"),
        ]
        for step in (10, 20)
    ]
    events = events_of(*saves)
    pointer = tmp_path / "code" / "latest"
    pointer.parent.mkdir()
    pointer.symlink_to("step_20") if content is None else pointer.write_text(content)
    shape = with_pointers(learn(events, {"code/step_10/a.pt": 9, "code/step_20/a.pt": 9}), events, RunDir(tmp_path))
    assert shape.pointers == (() if content in ("20", "a.pt") else ("code/latest",))
    there = [
        replace(event, path=f"{tmp_path}/{event.path}", to=event.to and f"{tmp_path}/{event.to}") for event in events
    ]
    assert pointed_at(shape, there, RunDir(tmp_path)) == (tuple(e.at for e in events if e.to) if shape.pointers else ())
