"""rehearsal.html: what a reader finds on it, and what no run can put on it."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from clusterdp.rehearse.show.page import page_of
from tests.rehearse.show.made_outcome import T0, made_outcome

EVIL = (
    "</title></style><script>alert(1)</script><img src=http://x.example/ onerror=alert(1)>\"'&{{ 7 * 7 }}\x1b[2J\u202e"
)
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")  # before the tests' own PATH


class Page(HTMLParser):
    """words: what is to be read."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.styles: list[str] = []
        self.read: list[str] = []
        self._in_style = False
        self.feed(html)
        self.words = " ".join(" ".join(self.read).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        (self.styles if self._in_style else self.read).append(data)

    def all(self, tag: str, kind: str = "") -> list[dict[str, str | None]]:
        return [each for name, each in self.tags if name == tag and kind in (each.get("class") or "")]


def page(word: str = "plain", **other: Any) -> Page:
    return Page(page_of({**made_outcome(word), **other}).decode())


def test_page_shows_the_verdict_and_facts_of_the_rehearsed_job() -> None:
    words = page().words
    assert "Rehearsal of plain failed This job does not survive 2 of 3 drills. 1 drill could not be made" in words
    for told in (
        "steps 100", "ranks 4 on 2 nodes", "grace time 20 s", "deterministic yes", "seed 0", "took 10 min",
        "end state the checkpoint of step 100, plain, bit for bit", "clusterdp 0.",
        'params.epochs 90 2 params.data "plain" "plain-small"',
    ):  # fmt: skip
        assert told in words
    assert "metrics.to" not in words, "it is as in the config"


def test_page_has_a_row_per_drill_and_a_section_per_executed_drill() -> None:
    found = page()
    for row in (
        "preempted preempted with a grace time passed attempt 1: preempted with 20 s of grace 0 bit for bit",
        "rank-killed a rank is killed failed attempt 1: rank 2 got SIGKILL 12 40 values differ the optimizer's state",
        "disk-full the disk is full during a save n/a no disk of its own: plain",
    ):
        assert row in found.words
    linked = {str(each.get("href")) for each in found.all("a")}
    assert linked == {f"#{each['id']}" for each in found.all("section", "drill") if "id" in each}
    assert len(linked) == 4
    assert "It took 3 tries" in found.words
    assert (
        "Compared with the undisturbed runs: the checkpoint of step 100: 18 values plain.csv: 60 lines" in found.words
    )
    assert "Not compared: plain.png (neither logs nor arrays)" in found.words
    assert "In this drill alone: restart.hang_after_s=8" in found.words
    assert "the first 2 of 40: model.0.weight plain optimizer.state.0.exp_avg differs by 3e-2" in found.words


def test_page_lists_commands_to_explain_a_failed_drill() -> None:
    words = page().words
    why = "clusterdp why '/runs/plain/rank killed' clusterdp logs '/runs/plain/rank killed'"
    assert f"{why} clusterdp checkpoint diff /runs/plain/undisturbed '/runs/plain/rank killed'" in words
    assert "clusterdp why /runs/plain/rank-hung clusterdp logs /runs/plain/rank-hung" in words
    assert "why /runs/plain/preempted" not in words
    assert "checkpoint diff" not in page(compare=["out/ckpt.pt"]).words, "those are no checkpoints of ours"


def test_page_draws_faults_at_their_time_on_a_shared_axis() -> None:
    found = page()
    marks = found.all("line", "hit")
    # The axis of 31 s begins with the wait for the first attempt, and the hit was 9 s later.
    assert [each["x1"] for each in marks[:2]] == ["29.032%"] * 2
    training = [(str(each["x"]), str(each["width"])) for each in found.all("rect", "training") if "x" in each]
    assert training[0] == ("12.903%", "51.613%"), "of the undisturbed run: 4 s after the begin, for 16 s"
    assert training[2] == ("12.903%", "12.903%")
    assert marks[2]["x1"] == "1.0%", "this run has taken 900 s"
    assert len(marks) == 3 and found.words.count("31 s") >= 4 and "15 min" in found.words


def test_page_of_a_passed_rehearsal_shows_no_reasons() -> None:
    told = made_outcome()
    drills = told["drills"][:1]
    found = page(drills=drills, said="This job survives the drill.", passed=True, steps=None, deterministic=False)
    assert "Rehearsal of plain passed This job survives the drill." in found.words
    assert "steps not told by the program" in found.words
    assert "within the spread of undisturbed runs deterministic no" in found.words
    assert "end state why" not in found.words


def test_page_reports_runs_without_attempts() -> None:
    told = made_outcome()
    for each in told["undisturbed"] + told["drills"]:
        each["attempts"] = []
    assert "No attempt has begun." in page(undisturbed=told["undisturbed"], drills=told["drills"]).words


def test_page_escapes_html_and_control_characters_in_run_data() -> None:
    evil = page(EVIL)
    assert [tag for tag, _ in evil.tags] == [tag for tag, _ in page().tags]
    assert not any(name.startswith("on") for _, attributes in evil.tags for name in attributes)
    assert "<script>alert(1)</script>" in evil.words and "{{ 7 * 7 }}" in evil.words
    assert not set(page_of(made_outcome(EVIL)).decode()) & {"\x1b", "\u202e"}


def test_page_loads_no_resource_and_forbids_scripts() -> None:
    found = page()
    assert not {"script", "link", "img", "iframe", "base"} & {tag for tag, _ in found.tags}
    assert not any("style" in attributes or "src" in attributes for _, attributes in found.tags)
    policy = next(str(each["content"]) for each in found.all("meta") if each.get("http-equiv"))
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found.styles]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'none'; base-uri 'none'; form-action 'none'"
    )
    assert not re.search(r"url\(|@import", found.styles[0])


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 400])
def test_browser_draws_fault_marks_within_the_page_without_console_errors(tmp_path: Path, width: int) -> None:
    if BROWSER is None:
        pytest.skip("no chromium")
    page_file, frame = tmp_path / "page.html", tmp_path / "frame.html"
    page_file.write_bytes(page_of(made_outcome("a-word-without-a-space-" * 6)))
    # Its policy lets no script into the page, so that another one measures it from outside.
    measure = (
        "const root = page.contentDocument.documentElement, hits = [...root.querySelectorAll('line.hit')];"
        "const boxes = hits.map(each => each.getBoundingClientRect());"
        "const seen = boxes.filter(box => box.right <= root.clientWidth && box.height > 9).length;"
        "document.title = [root.scrollWidth - root.clientWidth, seen, getComputedStyle(hits[0]).strokeWidth].join(' ')"
    )
    frame.write_text(
        f"<title>-</title><iframe id=page width={width} height=900 src=page.html></iframe>"
        f'<script>const page = document.getElementById("page"); page.onload = () => {{{measure}}}</script>'
    )
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += ["--allow-file-access-from-files", "--virtual-time-budget=2000", f"--user-data-dir={tmp_path}/profile"]
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert re.findall("<title>(.*)</title>", done.stdout) == ["0 3 3px"], (
        "wider than the window by; hits that are seen; their width"
    )


def test_page_shows_the_begin_as_date_and_time() -> None:
    assert re.search(r"began 20\d\d-\d\d-\d\d \d\d:\d\d", page(began=T0).words)
