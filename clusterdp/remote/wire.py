"""What passes between the user's machine and the cluster, through one ssh process.

To the cluster: a request, as the only argument of `python -m clusterdp.remote.there`; JSON and bytes of files on stdin.
From the cluster: the output of the verb, unchanged, and notes between its bytes: NUL, the nonce of the request, a JSON
object, a newline. What comes before the first note was printed by a login shell. An answer without its last note,
`end`, was cut."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

WIRE = 1  # changes with the request or the notes: both sides must have the same
LONGEST = 90_000  # characters of a request: a shell there gets it in one argument of at most 128 KiB
CHUNK = 1 << 16  # bytes
FILE = "\x7ffile"  # stands for the path of a file that comes back, as no path of a user is


class Request(NamedTuple):
    """What is asked of the cluster."""

    nonce: str
    words: list[str]  # of the command line, without --on
    folder: str  # the folder there, in which the verb runs
    environ: dict[str, str]  # the width and the colours of the terminal
    terminals: list[bool]  # whether stdout and stderr are terminals
    follows: bool = False  # the verb is ended if this connection ends
    held: bool = False  # more requests, lists of words, come on stdin
    sends: str = ""  # project: its files come on stdin; config: only those of the config
    run: str = ""  # the folder of the new run that the verb submits, in `folder`
    token: str = ""  # of that call
    typed: list[str] = []  # its words as the user typed them  # noqa: RUF012
    cut: dict[str, list[str]] = {}  # calls with an unknown outcome: token -> folder, time, words  # noqa: RUF012
    returns: str = ""  # the name here of a file that comes back; FILE in `words`
    has: list[Any] = []  # the name of an export there, and how many of its bytes are here  # noqa: RUF012

    def encoded(self) -> str:
        """Returns a word that no shell changes."""
        text = json.dumps({"wire": WIRE, **self._asdict()}, separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode("utf-8", "surrogateescape")).decode().rstrip("=")


def decoded(word: str) -> tuple[int, dict[str, Any]]:
    """Returns the wire of a request, and its fields."""
    data = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
    fields = json.loads(data.decode("utf-8", "surrogateescape"))
    return fields.pop("wire"), fields


class Notes:
    """Writes notes from the cluster's side."""

    def __init__(self, nonce: str):
        self.mark = b"\0" + nonce.encode()

    def write(self, fd: int = 1, **fields: Any) -> None:
        self.write_bytes(self.mark + json.dumps(fields, separators=(",", ":")).encode() + b"\n", fd)

    @staticmethod
    def write_bytes(data: bytes, fd: int = 1) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]


class Incoming:
    """Reads what comes from the cluster: iterate for bytes of output, and for notes."""

    def __init__(self, stream: IO[bytes], nonce: str):
        self.fd = stream.fileno()
        self.mark = b"\0" + nonce.encode()
        self.buffer = b""

    def __iter__(self) -> Iterator[bytes | dict[str, Any]]:
        while True:
            at = self.buffer.find(self.mark)
            if at == 0 and (end := self.buffer.find(b"\n")) > 0:
                yield json.loads(self._taken(end + 1)[len(self.mark) :])
            elif at and (some := self._taken(at if at > 0 else self._certain())):
                yield some
            elif not self._more():
                break
        if self.buffer:
            yield self._taken(len(self.buffer))

    def raw(self, count: int) -> Iterator[bytes]:
        """Yields the bytes of a file, which follow its note; fewer if the connection ends."""
        while count and (self.buffer or self._more()):
            data = self._taken(min(count, len(self.buffer)))
            count -= len(data)
            yield data

    def _certain(self) -> int:
        """Returns how many bytes of the buffer cannot be the begin of a mark."""
        at = self.buffer.rfind(b"\0", -len(self.mark))
        return at if at >= 0 and self.mark.startswith(self.buffer[at:]) else len(self.buffer)

    def _taken(self, count: int) -> bytes:
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def _more(self) -> bool:
        data = os.read(self.fd, CHUNK)
        self.buffer += data
        return bool(data)
