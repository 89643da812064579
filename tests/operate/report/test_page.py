"""The page: what a reader finds on it, what no record can put on it, and that it needs nothing from outside."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import pytest

from clusterdp import cli
from clusterdp.errors import ConfigError, OutputError
from clusterdp.operate.report.page import page_of, write_report
from clusterdp.rundir import RunDir
from tests.operate.builder import T0, RunBuilder, preempted_once
from tests.operate.damage import spoil_folder

EVIL = (
    "</script <!--<script></script></title></pre><script>alert(1)</script>"
    "<img src=http://x.example/ onerror=alert(1)>\"'&\x1b[2J\u202e"
)
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")  # before the tests' own PATH


class Page(HTMLParser):
    """words: what is to be read. scripts, styles: their texts. data: what the script gets."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "": []}
        self.within = ""
        self.feed(html)
        self.words = " ".join(" ".join(self.texts[""]).split())
        self.data: Any = json.loads(self.texts["script"][0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.within = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self.within:
            self.within = ""

    def handle_data(self, data: str) -> None:
        self.texts[self.within].append(data)


def page(*builders: RunBuilder, now: float = T0 + 1000) -> Page:
    return Page(page_of([each.run for each in builders], now).decode())


def lost_steps(path: Path) -> RunBuilder:
    """Crashed at step 40 of 60, twenty steps after the last checkpoint; done in the next attempt."""
    builder = RunBuilder(path).submitted()
    wide = {"cpus": "8(x2)", "gpus": 4}
    first = builder.attempt("7.0", **wide).trained(1, 20, 60).spent(20, startup=1, steps=2).saved(20)
    first.trained(21, 40, 60).spent(40, startup=1, steps=4).failed(exit=1).requeued("crash")
    second = builder.attempt("7.1", **wide).restored(20).spent(21, startup=1, restore=1)
    second.trained(21, 60, 60, lr=0.1).spent(60, startup=1, restore=1, steps=4).exited().finished(60)
    return builder


def test_report_shows_state_attempts_and_checkpoints(tmp_path: Path) -> None:
    found = page(lost_steps(tmp_path / "digits"))
    for words in ("digits done", "steps 60 of 60", "attempts 2", "steps lost 20", "goodput", "GPU-hours"):
        assert words in found.words
    assert "crashed (exit 1) at step 40, 20 steps lost" in found.words
    assert "Where the allocated time went" in found.words
    assert re.search(r"step committed size took attempt there 20 .* 7\.0", found.words)
    kinds = {attributes.get("class") for tag, attributes in found.tags if tag == "rect"}
    assert {"starting", "training", "lost"} <= kinds


def test_report_joins_curves_of_attempts_and_separates_lost_steps(tmp_path: Path) -> None:
    charts = {chart["name"]: chart["lines"] for chart in page(lost_steps(tmp_path / "digits")).data["charts"]}
    again, kept = charts["loss"]
    assert kept["x"] == list(range(1, 61))
    assert (again["again"], again["x"]) == (1, list(range(21, 41)))
    assert charts["lr"][0]["x"] == list(range(21, 61))
    assert "steps a second" in charts


def test_report_time_bars_do_not_overlap(tmp_path: Path) -> None:
    rows: list[list[tuple[float, float]]] = []
    for tag, attributes in page(lost_steps(tmp_path / "digits")).tags:
        if tag == "svg":
            rows.append([])
        elif tag == "rect" and "x" in attributes:
            left, width = (float(str(attributes[key]).rstrip("%")) for key in ("x", "width"))
            rows[-1].append((left, left + width))
    bars = [row for row in rows if row]
    assert len(bars) == 2
    ends = [0.0, *(end for row in bars for _, end in row)]
    begins = [begin for row in bars for begin, _ in row]
    assert all(begin >= end - 0.01 for begin, end in zip(begins, ends, strict=False))
    assert ends[-1] == pytest.approx(100, abs=0.1)


def test_report_of_two_runs_shares_charts_and_lists_differences(tmp_path: Path) -> None:
    a, b = preempted_once(tmp_path / "a"), lost_steps(tmp_path / "b")
    a.run.config.write_text("name: digits\nparams: {lr: 0.1, epochs: 3}\n")
    b.run.config.write_text("name: digits\nparams: {lr: 0.3, epochs: 3}\n")
    a.run.source.write_text(json.dumps({"git": {"commit": "1" * 40, "dirty": True}, "packages": {"torch": "2.13"}}))
    b.run.source.write_text(json.dumps({"git": {"commit": "2" * 40}, "packages": {"torch": "2.12"}}))
    found = page(a, b)
    assert found.data["runs"] == ["a", "b"]  # both are called digits: the folders tell them apart
    loss = next(chart for chart in found.data["charts"] if chart["name"] == "loss")
    assert {line["run"] for line in loss["lines"]} == {0, 1}
    for words in ("params.lr 0.1 0.3", "commit 111111111111+ 222222222222", "torch 2.13 2.12", "step 240 60"):
        assert words in found.words
    assert "params.epochs 3 3" not in found.words


def test_report_shows_slowest_ranks_config_and_code(tmp_path: Path) -> None:
    builder = lost_steps(tmp_path / "digits")
    ranks = [{"ms": {"data": 1.0, "step": 30.0 + rank}, "node": f"n{rank}"} for rank in range(40)]
    times = {"steps": 40, "ranks": ranks, "diagnosis": ["Rank 39 is slow."], "stragglers": []}
    builder.run.attempt("7.1").times.write_text(json.dumps(times))
    builder.run.source.write_text(json.dumps({"git": {"commit": "c" * 40, "dirty": True, "untracked": ["new.py"]}}))
    builder.run.source_diff.write_text("-old <line>\n+new & line\n")
    found = page(builder)
    assert "32 slowest of 40 ranks" in found.words and "70.00 ms n39" in found.words
    assert "39.00 ms n8" in found.words and "n7 " not in found.words
    assert "Rank 39 is slow." in found.words
    for words in ("name: digits", "cccccccccccc+", "new.py", "-old <line> +new & line"):
        assert words in found.words


def test_report_of_a_live_run_shows_its_attempt_as_running(tmp_path: Path) -> None:
    found = page(preempted_once(tmp_path / "digits"))
    assert "preempted at step 120, saved" in found.words
    assert re.search(r" 2 [^0-9]*: [0-9 sa-z:]* running", found.words)


def test_report_of_a_waiting_run_names_missing_metrics_and_code(tmp_path: Path) -> None:
    found = page(RunBuilder(tmp_path / "waits").submitted())
    assert "digits waiting" in found.words
    assert "No metrics are on record." in found.words
    assert "The run has no record of its code." in found.words


def test_hostile_records_add_no_script_or_element_to_the_report(tmp_path: Path) -> None:
    def tags(*builders: RunBuilder) -> list[str]:
        return [tag for tag, _ in page(*builders).tags]

    def made(path: Path, word: str) -> RunBuilder:
        builder = RunBuilder(path).submitted(name=word)
        attempt = builder.attempt("7.0", nodes=word).trained(1, 9, **{word: 1.0}).saved(5)
        builder.run.config.write_text(json.dumps({"name": word, "params": {word: word}}))
        builder.run.source.write_text(json.dumps({"user": word, "git": {"commit": word, "untracked": [word]}}))
        builder.run.source_diff.write_text(word)
        times = {"steps": 1, "ranks": [{"ms": {word: 1.0}, "node": word}], "diagnosis": [word]}
        attempt.files.times.write_text(json.dumps(times))
        attempt.failed(reason=word)
        return builder

    good, other, evil = (made(tmp_path / f"run{i}", word) for i, word in enumerate(("good", "other", EVIL)))
    assert tags(evil) == tags(good)
    assert tags(evil, good) == tags(other, good)
    found = page(evil)
    assert not set(found.texts["script"][0]) & set("<>&")  # a browser ends a script where Python's parser does not
    assert EVIL in [chart["name"] for chart in found.data["charts"]]
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    html = page_of([evil.run], T0).decode()
    assert not set(html) & {"\x1b", "\u202e"}


def test_report_loads_no_resource_and_forbids_other_scripts(tmp_path: Path) -> None:
    found = page(lost_steps(tmp_path / "digits"))
    links = [value for _, each in found.tags for name, value in each.items() if name in ("src", "href", "action")]
    assert not links and "link" not in {tag for tag, _ in found.tags}
    policy = next(str(each["content"]) for _, each in found.tags if each.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy
    for text in [*found.texts["script"][1:], *found.texts["style"]]:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
        assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket", text)
    assert len(found.texts["script"]) == 3 and len(found.texts["style"]) == 2


def test_report_names_a_remote_checkpoint_store_as_not_asked(tmp_path: Path) -> None:
    builder = lost_steps(tmp_path / "digits")
    builder.run.config.write_text("name: digits\ncheckpoint: {url: 's3://bucket/run'}\n")
    assert "They are at s3://bucket/run, which was not asked." in page(builder).words


def test_report_command_prints_the_name_of_its_page(
    elsewhere: Path, builder: RunBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    builder.submitted().attempt()
    other = preempted_once(elsewhere / "runs" / "other")
    assert cli.main(["report", "runs/digits"]) == 0
    assert re.fullmatch(r"report-digits\.html: 1 run, \S+ kB\. Open it in a browser\.\n", capsys.readouterr().out)
    assert cli.main(["report", "-o", "both.html", "runs/digits", str(other.run.path)]) == 0
    assert page_title(elsewhere / "both.html") == "digits, other"
    assert cli.main(["report", "nowhere"]) == 4
    assert sorted(path.name for path in elsewhere.glob("*.html")) == ["both.html", "report-digits.html"]


def page_title(file: Path) -> str:
    return re.findall("<title>(.*)</title>", file.read_text())[0]


def test_report_refuses_too_many_runs_and_unwritable_places(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "digits").run
    with pytest.raises(ConfigError, match="report: 21 runs are too many"):
        write_report([run] * 21, None)
    with pytest.raises(OutputError, match=r"nowhere/x\.html: cannot be written: No such file or directory"):
        write_report([run], str(tmp_path / "nowhere/x.html"))


def spoiled_pages(source: RunDir, place: Path, seeds: range) -> None:
    for seed in seeds:
        run, dice = place / "run", Random(seed)
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(source.path, run)
        said = spoil_folder(run, dice)
        try:
            found = Page(page_of([RunDir(run), source], T0 + 1000).decode())
        except Exception as error:
            raise AssertionError(f"seed {seed}: {said}") from error
        assert "charts" in found.data, said


@pytest.fixture
def whole(tmp_path: Path) -> RunDir:
    builder = lost_steps(tmp_path / "whole")
    times = {"steps": 1, "ranks": [{"ms": {"data": 1.0}, "node": "n1"}], "diagnosis": ["x"]}
    builder.run.attempt("7.1").times.write_text(json.dumps(times))
    builder.run.source.write_text(json.dumps({"user": "me", "git": {"commit": "c"}, "packages": {"torch": "2"}}))
    builder.run.source_diff.write_text("+x\n")
    return builder.run


def test_report_is_written_from_run_folders_with_random_damage(whole: RunDir, tmp_path: Path) -> None:
    spoiled_pages(whole, tmp_path, range(12))


@pytest.mark.slow
def test_report_is_written_from_a_thousand_run_folders_with_random_damage(whole: RunDir, tmp_path: Path) -> None:
    spoiled_pages(whole, tmp_path, range(12, 1012))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 500])
def test_browser_draws_each_curve_of_the_report_without_errors(tmp_path: Path, width: int) -> None:
    if BROWSER is None:
        pytest.skip("no chromium")
    file = tmp_path / "page.html"
    write_report([preempted_once(tmp_path / "a").run, lost_steps(tmp_path / "b").run], str(file))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += ["--virtual-time-budget=2000", f"--window-size={width},900", f"--user-data-dir={tmp_path}/profile"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    found = Page(done.stdout)
    assert [tag for tag, _ in found.tags].count("canvas") == len(found.data["charts"]) >= 3
    rows = [each for _, each in found.tags if "u-series" in str(each.get("class")).split()]
    assert len(rows) == sum(1 + len(chart["lines"]) for chart in found.data["charts"])  # the legends
