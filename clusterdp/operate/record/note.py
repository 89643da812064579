"""`clusterdp note`: a line that the user writes about a run. The line is kept in the file `note` of the run folder, and
shown by `status` and `list`."""

from __future__ import annotations

from clusterdp.errors import ConfigError, RunError
from clusterdp.operate.output.formatting import shown_path
from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir, write_durably

LONGEST = 200  # characters: the note must fit into a line


def read_note(run: RunDir) -> str:
    """Returns the note; empty if the run has no note."""
    try:
        text = read_plain(run.note, 64 * LONGEST).decode(errors="replace")
    except OSError:
        return ""
    return _one_line(text)[:LONGEST]


def write_note(run: RunDir, text: str) -> str:
    """Writes or replaces the note, and returns a message about the result. If `text` is empty, the note is removed.
    Raises ConfigError if the text is too long, RunError if the note cannot be written."""
    text, path = _one_line(text), shown_path(run.path)
    if len(text) > LONGEST:
        raise ConfigError(f"{text[:40]!r}...: has {len(text)} characters. Write {LONGEST} at most.")
    try:
        if text:
            write_durably(run.note, text + "\n")
        else:
            run.note.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{run.note}: cannot be written: {error.strerror}. See whose run it is.") from None
    return f"{path}: {text}" if text else f"{path}: has no note any more."


def _one_line(text: str) -> str:
    return " ".join(text.split())
