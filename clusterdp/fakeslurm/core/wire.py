"""The messages of commands, slurmctld and slurmstepds over the cluster's unix socket.

A message is a frame: one letter for its kind, four bytes with the length of the payload (big endian), the payload.
Commands import wire.py and few other modules, because commands must start within milliseconds.

    from a command                                to a command
    C  words of the command line                  o e   text for stdout, stderr
    D  folder, umask, pid, ... as NAME=VALUE      r     read this file and send it (empty: stdin)
    E  environment as NAME=VALUE                  i     send stdin from now on
    G  the request is complete                    x     exit with this status; the last frame
    F  the file that `r` asked for                b     the step begins: do not ask for it again
    Y  errno: the file cannot be read
    i  bytes of stdin (empty: its end)
    s  a signal that the command received         a     salloc: run your program now
    w  salloc: the wait status of its program     k     salloc: signal your program

slurmctld and slurmstepds exchange J frames with one JSON object each (orders.py, reports.py). The items of a list are
joined by NUL, because a word, variable or path cannot contain NUL.
"""

HEADER = 5


def head(kind: str, payload: bytes) -> bytes:
    return kind.encode() + len(payload).to_bytes(4, "big")


def frame(kind: str, payload: bytes = b"") -> bytes:
    return head(kind, payload) + payload


class Frames:
    """Collects received bytes and returns each frame when it is complete."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> "list[tuple[str, bytes]]":
        held, found = self._bytes, []
        held += data
        at = 0
        while len(held) - at >= HEADER:
            end = at + HEADER + int.from_bytes(held[at + 1 : at + HEADER], "big")
            if len(held) < end:
                break
            found.append((chr(held[at]), bytes(memoryview(held)[at + HEADER : end])))
            at = end
        del held[:at]
        return found


def joined(words: "list[str]") -> bytes:
    return "\0".join(words).encode("utf-8", "surrogateescape")


def split(payload: bytes) -> "list[str]":
    text = payload.decode("utf-8", "surrogateescape")
    return text.split("\0") if text else []
