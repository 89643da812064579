from __future__ import annotations

import io
import json

import pytest

from clusterdp import cli
from clusterdp.errors import ConfigError, RunError
from clusterdp.operate.record.note import LONGEST, read_note, write_note
from clusterdp.operate.status.show_status import show_status
from clusterdp.rundir import RunDir
from tests.operate.builder import RunBuilder


def test_note_command_writes_shows_and_removes_a_note(builder: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    run = builder.submitted().run
    assert read_note(run) == ""
    assert cli.main(["note", "digits", "a ", "b", "--", "-c"]) == 0
    assert run.note.read_text() == "a b -c\n"
    assert cli.main(["note", "digits"]) == 0
    assert capsys.readouterr().out == "runs/digits: a b -c\na b -c\n"
    out = io.StringIO()
    show_status(run, out, as_json=True)
    assert json.loads(out.getvalue())["note"] == "a b -c"
    show_status(run, out)
    assert "note   a b -c\n" in out.getvalue()
    assert cli.main(["note", "digits", "--clear"]) == 0
    assert not run.note.exists()
    assert cli.main(["note", "digits", ""]) == 0
    assert cli.main(["note", "digits"]) == 0
    assert capsys.readouterr().out == "runs/digits: has no note any more.\n" * 2


def test_mistaken_note_command_keeps_the_old_note(builder: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    run = builder.submitted().run
    write_note(run, "before")
    assert cli.main(["note", "digits", "x", "--clear"]) == 2
    assert cli.main(["note", "digits", "x" * (LONGEST + 1)]) == 2
    assert cli.main(["note"]) == 2
    assert "`clusterdp note runs/digits`" in capsys.readouterr().err
    assert read_note(run) == "before"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * 100_000, b"", b"\n\n", b"\x1b[2Ja\nb"])
def test_malformed_note_file_is_read_as_one_short_line(builder: RunBuilder, content: bytes) -> None:
    builder.run.note.write_bytes(content)
    assert "\n" not in read_note(builder.run)
    assert len(read_note(builder.run)) <= LONGEST


def test_note_and_status_print_no_control_characters_of_a_note(
    builder: RunBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    builder.submitted().run.note.write_text("a\x1b]0;title\x07b\x1b[2J\u202e\n")
    for verb in ("note", "status"):
        assert cli.main([verb, "digits"]) == 0
        assert "ab" in (said := capsys.readouterr().out)
        assert all(line.isprintable() for line in said.splitlines())


def test_unwritable_or_too_long_note_is_an_error(builder: RunBuilder) -> None:
    builder.run.note.mkdir()
    with pytest.raises(RunError, match=r"note: cannot be written: .*See whose run it is"):
        write_note(builder.run, "x")
    with pytest.raises(ConfigError, match=r"has 201 characters\. Write 200 at most"):
        write_note(RunDir(builder.run.path), "x" * 201)
