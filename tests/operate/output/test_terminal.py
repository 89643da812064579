"""What others wrote moves no cursor: of their text only what can be shown is printed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from clusterdp.cli import main
from clusterdp.operate.logs.show_logs import show_logs
from clusterdp.operate.output.terminal import COLOURS, OURS, clean_stream, printable
from tests.operate.builder import RunBuilder
from tests.operate.conftest import FakeQueue

ESCAPES = "\x1b]0;title\x07\x1b[2J\x1b[1Aa\x9b2J\x7f\x08\x00\u202eb\x1b"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain\ttext\nÄ 漢 🙂", "plain\ttext\nÄ 漢 🙂"),
        (ESCAPES, "ab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2\x1b\\x", "x"),
        ("\x1b]0;never ended\nnext", "0;never ended\nnext"),
        ("\x1b(0x\x1bcx", "xx"),
        ("one\rtwo\x85three\u2028", "onetwothree"),
        ("\x1b\x1b[2J", ""),
    ],
)
def test_printable_removes_terminal_control_characters(text: str, left: str) -> None:
    assert printable(text) == left


def test_clean_stream_keeps_only_plain_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    clean_stream(out).write("\x1b[31mred\x1b[0m \x1b[8mhidden\x1b[2J")
    assert out.getvalue() == "\x1b[31mred\x1b[0m hidden"
    assert printable("\x1b[1;38;5;8mx\x1b[m\r", COLOURS) == "\x1b[1;38;5;8mx\x1b[m\r"
    assert printable("\x1b[1;31m", OURS) == ""


@pytest.mark.parametrize("words", [["status"], ["logs"], ["cancel"], ["checkpoint", "ls"]])
def test_status_logs_cancel_and_checkpoint_ls_print_no_escapes_from_hostile_records(
    words: list[str], builder: RunBuilder, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    builder.submitted(name=f"n{ESCAPES}", cluster=ESCAPES).attempt(nodes=ESCAPES).printed(ESCAPES)
    builder.event("failed", "7.0", "batch", cause=ESCAPES, reason=ESCAPES)
    (builder.run.metrics).mkdir()
    (builder.run.metrics / "7.0.jsonl").write_text(json.dumps({"step": 1, f"{ESCAPES}loss": ESCAPES[:9]}))
    queue.answers(error=ESCAPES.replace("\0", ""))
    main([*words, str(builder.run.path)])
    out, err = capsys.readouterr()
    assert out + err and (out + err).replace("\n", "").isprintable()


def test_config_error_prints_a_key_without_its_escape_sequence(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("cfg.yaml").write_text('"\\e[2Jkey": 1\n')
    assert main(["show", "cfg.yaml"]) == 2
    assert capsys.readouterr().err.startswith("clusterdp: cfg.yaml:1: key: there is no such key.")


def test_logs_keeps_progress_bars_and_terminal_colours(builder: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    builder.submitted().attempt().printed("\x1b[32m10 %\x1b[m\x1b[K\r20 %\n")
    for out, said in ((io.StringIO(), "10 %\r20 %\n"), (Terminal(), "\x1b[32m10 %\x1b[m\r20 %\n")):
        show_logs(builder.run, out=out)
        assert out.getvalue() == said
