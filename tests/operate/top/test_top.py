"""`clusterdp top`: its table, its screens and its keys, with real run folders and a squeue of three lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from textual.screen import Screen

from clusterdp.operate.listing.columns import Summary
from clusterdp.operate.listing.watch_runs import Listing
from clusterdp.operate.record.note import read_note, write_note
from clusterdp.operate.top.app import HELP, Top
from clusterdp.operate.top.screens import Ask, TextScreen, TypeLine
from clusterdp.operate.top.source import LocalSource, Part, Source
from clusterdp.operate.top.table import RunTable
from clusterdp.rundir import RunDir
from tests.operate.builder import RunBuilder
from tests.operate.conftest import FakeQueue
from tests.operate.golden import check_golden
from tests.operate.project import DONE, FAILED, NOW, RUNNING, WAITING, make_project
from tests.operate.top.pilot import LARGE, SMALL, Player, play

GOLDEN = Path(__file__).parent / "screens"
NEWEST_FIRST = [WAITING, RUNNING, FAILED, DONE, "rates"]
KEYS: dict[str, tuple[type[Screen[Any]], tuple[str, ...]]] = {  # the screen to which the keys lead
    "table": (Screen, ()),
    "filtered": (TypeLine, ("slash", "d", "i", "g", "i")),
    "cancel": (Ask, ("down", "c")),
    "failed": (TextScreen, ("down", "down", "enter")),
    "waiting": (TextScreen, ("enter",)),
    "sweep": (TextScreen, ("end", "enter")),
    "errors": (TextScreen, ("j", "j", "e")),
    "help": (TextScreen, ("question_mark",)),
}


@pytest.fixture
def project(elsewhere: Path, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    make_project(elsewhere, queue)
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield elsewhere
    monkeypatch.undo()
    time.tzset()


class OtherHost:
    """Runs of another host, as a source that is reached over a network would give them."""

    host = "far"

    def __init__(self, runs: list[Summary], pause_s: float = 1e6):
        self.runs = runs
        self.pause_s = pause_s
        self.listed = 0
        self.called: list[Sequence[str]] = []
        self.answers = threading.Event()
        self.answers.set()

    def list(self) -> Listing:
        self.answers.wait()
        self.listed += 1
        return Listing(self.runs, lambda run: run.rpartition("/")[2], (), self.pause_s)

    def details(self, run: str, columns: int) -> Iterator[Part]:
        yield Part("status", f"{run} in {columns} columns")

    def logs(self, run: str, errors: bool) -> str:
        raise OSError(5, "the connection was cut")

    def call(self, words: Sequence[str]) -> str:
        self.called.append(words)
        return "done there"


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80", "200"])
@pytest.mark.parametrize("name", KEYS)
def test_screen_of_top_equals_its_golden_file(name: str, size: tuple[int, int], project: Path) -> None:
    (screen, keys), path = KEYS[name], GOLDEN / f"{name}-{size[0]}.txt"
    expected = path.read_text() if path.exists() else ""

    async def story(player: Player) -> str:
        await player.press(*keys)
        await player.until(lambda: isinstance(player.app.screen, screen) and player.is_read)
        with suppress(AssertionError):  # the last line may still be drawn
            await player.until(lambda: player.text == expected, 5.0)
        return player.text

    text = play(story, size=size)
    assert max(map(len, text.splitlines())) <= size[0]
    check_golden(path, text)


def test_arrows_and_letters_select_a_run(project: Path) -> None:
    async def story(player: Player) -> list[str]:
        seen = [player.selected]
        for key in ("down", "j", "k", "up", "up", "G", "j", "g", "end", "home", "pagedown", "pageup"):
            await player.press(key)
            seen.append(player.selected)
        return seen

    first, last = NEWEST_FIRST[0], NEWEST_FIRST[-1]
    assert play(story) == [first, RUNNING, FAILED, RUNNING, first, first, last, last, first, last, first, last, first]


def test_s_sorts_by_the_next_column_and_capital_s_reverses(project: Path) -> None:
    async def story(player: Player) -> None:
        assert player.names == NEWEST_FIRST
        await player.press("s")  # the next after age, the last column of 80
        assert player.names == sorted(NEWEST_FIRST)
        await player.press("S")
        assert player.names == sorted(NEWEST_FIRST, reverse=True)
        await player.press("s")
        assert player.names[-1] == DONE
        assert "state↓" in player.text

    play(story)


def test_filter_shows_runs_with_all_words_while_they_are_typed(project: Path) -> None:
    async def story(player: Player) -> None:
        await player.press("slash")
        await player.type("dig")
        assert player.names == [RUNNING, DONE]
        await player.type(" baseline")
        await player.press("enter")
        assert player.names == [DONE]
        await player.press("slash", "escape")
        assert player.names == NEWEST_FIRST
        await player.press("slash", *"123460", "enter")  # a job
        assert player.names == [WAITING]
        await player.press("escape")
        assert player.names == NEWEST_FIRST

    play(story)


def test_table_stays_current_with_one_squeue_for_each_refresh(project: Path, queue: FakeQueue) -> None:
    async def story(player: Player) -> None:
        await player.press("j")
        RunBuilder(project / "runs/new").passes(7000).submitted("123470")
        queue.answers("123459|COMPLETING|None|n1", "123470|PENDING|Priority|")
        await player.until(lambda: "new" in player.names)
        assert player.names[0] == "new"
        assert player.selected == RUNNING  # although another came before it

    play(story, ask_s=0.05)
    new = next(at for at, line in enumerate(queue.asked) if "123470" in line)
    assert {line.split()[0] for line in queue.asked} == {"squeue"}
    assert all("123459" in line and "123460" in line for line in queue.asked[: new + 1])  # all runs in each


def test_rows_are_not_read_below_another_screen_but_after_it(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far, covered, read = OtherHost([], pause_s=0.01), 0, Top._read

    def counted(app: Top, source: Source) -> None:
        nonlocal covered
        covered += any(isinstance(screen, TextScreen) for screen in app.screen_stack)
        read(app, source)

    async def story(player: Player) -> None:
        await player.press("question_mark")
        await player.until(lambda: covered)
        before = far.listed
        await player.press("q")
        await player.until(lambda: far.listed > before + 2)
        assert covered == 1

    monkeypatch.setattr(Top, "_read", counted)
    play(story, sources=[far], ask_s=0.01)


def test_screen_of_a_run_calls_squeue_once(project: Path, queue: FakeQueue) -> None:
    async def story(player: Player) -> None:
        (queue.folder / "asked").unlink()
        await player.press("j", "enter")
        await player.until(lambda: isinstance(player.app.screen, TextScreen) and player.is_read)

    play(story)
    assert [line.split()[0] for line in queue.asked] == ["squeue"]


@pytest.mark.parametrize(("key", "verb"), [("c", "cancel"), ("t", "stop"), ("r", "resume")])
def test_verb_with_a_cost_asks_once_and_needs_a_yes(key: str, verb: str, elsewhere: Path, queue: FakeQueue) -> None:
    make_project(elsewhere, queue)
    far = OtherHost(LocalSource().list().runs)

    async def story(player: Player) -> None:
        await player.until(lambda: player.names)
        await player.press("j")
        for no in ("n", "escape", "enter", "space"):
            await player.press(key)
            assert f"{verb.title()} {RUNNING}" in player.text
            await player.press(no)
        await player.press(key, "y")
        await player.sees("done there")
        assert far.called == [[verb, str(elsewhere / "runs" / RUNNING)]]

    play(story, sources=[far])


def test_cancel_ends_the_job_of_the_selected_run(project: Path, queue: FakeQueue) -> None:
    async def story(player: Player) -> None:
        await player.press("j", "c", "y")
        await player.sees("cancelled job 123459")

    play(story)
    assert RunDir(project / "runs" / RUNNING).cancelled.exists()
    assert [line for line in queue.asked if line.startswith("scancel")] == ["scancel 123459"]


def test_stop_marks_the_run_and_resume_shows_its_error(project: Path) -> None:
    async def story(player: Player) -> None:
        await player.press("j", "t", "y")
        await player.sees("saves at one of its next steps")
        await player.press("r", "y")
        await player.sees("clusterdp: ")  # there is no config to go on with

    play(story)
    assert RunDir(project / "runs" / RUNNING).stop.exists()


def test_note_is_written_shown_and_removed(project: Path) -> None:
    run = RunDir(project / "runs" / WAITING)

    async def story(player: Player) -> None:
        await player.press("n")
        await player.type("--5-is-low")
        await player.press("enter")
        await player.sees(f"{WAITING}: --5-is-low")
        assert read_note(run) == "--5-is-low"

    play(story)

    async def removed(player: Player) -> None:
        await player.press("n", "escape")
        await player.press("n", *["backspace"] * 20, "enter")
        await player.sees("has no note any more")

    play(removed)
    assert read_note(run) == ""


def test_two_sources_have_a_host_column_and_one_table(project: Path) -> None:
    far = OtherHost([{**row, "run": f"/far{row['run']}"} for row in LocalSource().list().runs[:2]])

    async def story(player: Player) -> None:
        await player.until(lambda: len(player.names) == 7)
        assert player.text.splitlines()[1].startswith("host")
        await player.press("slash", *"far", "enter")
        assert player.names == [WAITING, RUNNING]
        await player.press("enter")
        assert "in 78 columns" in await player.sees("/far")
        await player.press("l")
        await player.sees("the connection was cut")
        await player.press("q", "c", "y")
        await player.sees("done there")

    play(story, sources=[LocalSource(), far])
    assert [words[0] for words in far.called] == ["cancel"]


def test_host_without_an_answer_delays_neither_keys_nor_the_end(project: Path) -> None:
    far = OtherHost([])
    far.answers.clear()

    async def story(player: Player) -> None:
        await player.until(lambda: player.names)
        await player.press("j")
        assert player.selected == RUNNING
        await player.press("q")

    play(story, sources=[far, LocalSource()])
    far.answers.set()


def test_escape_sequences_of_others_reach_no_screen(project: Path) -> None:
    run = RunDir(project / "runs" / WAITING)
    write_note(run, "\x1b[2J\x1b]0;title\x07note\x9b2K")

    async def story(player: Player) -> str:
        table = player.text
        await player.press("enter")
        return table + await player.sees("status")

    text = play(story, size=LARGE)
    assert "note" in text
    assert not any(character < " " or "\x7f" <= character <= "\x9f" for character in text.replace("\n", ""))


def test_silent_squeue_marks_states_and_names_the_reason(project: Path, queue: FakeQueue) -> None:
    queue.answers(error="slurm_load_jobs error: no answer")

    async def story(player: Player) -> None:
        await player.sees("squeue: failed (exit 1)")
        await player.sees("A ? marks what was last recorded.")
        assert "running?" in player.text

    play(story)


def test_program_without_runs_names_the_option_for_others(elsewhere: Path, queue: FakeQueue) -> None:
    async def story(player: Player) -> str:
        await player.press("enter", "l", "c", "n", "j", "s")
        return player.text

    assert "No runs. `clusterdp top --all`" in play(story)


def test_page_and_help_name_each_key_of_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs/top.md").read_text()
    table = "\n".join(line.rpartition("| ")[0] for line in page.splitlines() if line.startswith("| "))
    words = {"slash": "/", "question_mark": "?", "pageup": "PgUp", "pagedown": "PgDn", "escape": "Esc"}
    left = {"up", "down", "space", "ctrl+b", "ctrl+f", "ctrl+c", "ctrl+q"}  # arrows, and what fingers expect anyway
    bound = {key for each in (*Top.BINDINGS, *RunTable.BINDINGS) for key in each.key.split(",")} - left
    for key in bound:
        named = words.get(key, key if len(key) == 1 else key.title())
        assert f"`{named}`" in table, key
        assert named == "?" or named.lower() in HELP.lower().split(), key
