"""srun: as the others, and it passes on its stdin and the signals that it receives."""

import _signal as signal  # `signal` proper imports enum: 5 ms
import os
import sys
from select import select

import client
import wire

HEARD = [getattr(signal, "SIG" + name) for name in "HUP INT QUIT TERM CONT USR1 USR2 ALRM PIPE".split()]


def main() -> None:
    folder, address, *words = sys.argv[1:]
    line = client.connect("srun", folder, address)
    wakeup, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written)
    for number in HEARD:
        signal.signal(number, lambda *_: None)
    client.request(line, "srun", words)
    frames, reading = wire.Frames(), [line.fileno(), wakeup]
    while True:
        ready, _, _ = select(reading, [], [])
        if wakeup in ready:
            for number in os.read(wakeup, 64):
                line.sendall(wire.frame("s", str(number).encode()))
        if 0 in ready:
            data = read_stdin()
            line.sendall(wire.frame("i", data))
            if not data:
                reading.remove(0)
        if line.fileno() in ready:
            data = line.recv(1 << 16)
            if not data:
                client.write(2, b"srun: error: the fake cluster went away.\n")
                sys.exit(1)
            for kind, payload in frames.feed(data):
                if kind in "oe":
                    client.write(1 if kind == "o" else 2, payload)
                elif kind == "i":
                    reading.append(0)
                elif kind == "x":
                    os._exit(int(payload))
                elif kind == "k":
                    signal.signal(int(payload), signal.SIG_DFL)
                    os.kill(os.getpid(), int(payload))


def read_stdin() -> bytes:
    try:
        return os.read(0, 1 << 16)
    except OSError:
        return b""


try:
    main()
except (BrokenPipeError, ConnectionResetError):
    sys.exit(1)
