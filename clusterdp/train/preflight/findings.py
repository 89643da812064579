"""Finding: what a check has to say about a node."""

from __future__ import annotations

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
