"""Record: writes all files of this program. On a full disk a line may be lost, but never the run."""

import json
import os
import time
from typing import Any

from .job import Job
from .texts import as_bytes, shown, warn


class Record:
    def __init__(self, job: Job) -> None:
        self.job = job

    def event(self, event: str, **details: Any) -> None:
        """Appends one line to this program's own file of the ledger."""
        line = {"time": round(time.time(), 6), "event": event, "attempt": self.job.attempt}
        line.update(details)
        text = json.dumps(_shown(line), separators=(",", ":"))
        path = os.path.join(self.job.run, "events", self.job.attempt + "-batch.jsonl")
        self._write(path, "a", text + "\n", 'the event "{}"'.format(event))

    def note(self, name: str, text: str) -> None:
        """Writes a file in this attempt's folder."""
        self.note_of(self.job.attempt, name, text)

    def note_of(self, attempt: str, name: str, text: str) -> None:
        path = os.path.join(self.job.folder_of(attempt), name)
        if text:
            self._write(path, "w", text + "\n", "attempts/{}/{}".format(attempt, name))

    def mark(self, name: str) -> None:
        """Makes an empty file in this attempt's folder."""
        self._write(self.job.file(name), "w", "\n", "attempts/{}/{}".format(self.job.attempt, name))

    def _write(self, path: str, mode: str, text: str, what: str) -> None:
        try:
            with open(path, mode + "b") as file:
                file.write(as_bytes(text))
        except OSError:
            warn(
                "{}: cannot write {}. Is its disk full, or a quota used up? Going on without.".format(
                    self.job.run, what
                )
            )


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(each) for each in value]
    return value


def one_line(text: str, most: int = 300) -> str:
    """Returns the text as one line for the ledger and for people, without quotes, backslashes and control
    characters."""
    return "".join(" " if each in '\\"' or ord(each) < 32 or ord(each) == 127 else each for each in text)[:most]
