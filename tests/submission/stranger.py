"""Another user of the node: writes pickles that run code into every key of a job's store, until the store is gone.

`python -m tests.submission.stranger PORT MARKER`: whoever unpickles what it wrote makes the file MARKER. Run by root
it becomes nobody first. Says `connected` before it begins.
"""

from __future__ import annotations

import base64
import os
import pickle
import sys
from datetime import timedelta

from torch.distributed import DistNetworkError, TCPStore  # type: ignore[attr-defined]

NOBODY = 65534


class Payload:
    def __init__(self, marker: str):
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.marker, "w")


def main(port: int, marker: str) -> None:
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60), wait_for_workers=False)
    raw = pickle.dumps(Payload(marker))
    print("connected", flush=True)
    try:
        while True:
            for value in (base64.b64encode(raw), raw):  # c10d's rendezvous encodes what it pickles
                for key in store.list_keys():
                    if key != "init/":  # the server's own count of clients: a job that waits for it reads nothing
                        store.set(key, value)
    except (DistNetworkError, RuntimeError):
        return


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
