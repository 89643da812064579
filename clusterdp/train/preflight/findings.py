"""Finding: what a check has to say about a node."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """fatal: the ranks must not start on this node. node: if it is another one; `-` is none in particular."""

    text: str
    fatal: bool = True
    node: str = ""

    def line(self, here: str) -> str:
        text = " ".join(self.text.split())
        return f"preflight {self.node or here} {'failed' if self.fatal else 'says'} {text}"


def tell(line: str) -> None:
    """Prints a line at once and whole: print() writes its end apart, and srun would put another node's line between."""
    os.write(1, f"{line}\n".encode())
