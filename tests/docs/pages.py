"""The pages for users, and the blocks in them.

A `bash` block, and an indented line that begins with `clusterdp`, are command lines; a `yaml` block is a config or a
part of one; a `python` block runs after those before it on its page. `text` is output. `<!-- not run: REASON -->` in
the line before a block excludes it, and `<!-- tested: FILE -->` marks a block that another test runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<before><!-- [^\n]* -->\n)?(?P<indent> *)```(?P<language>[\w{}-]*)(?: [^\n]*)?\n(?P<text>.*?)^ *```$",
    re.M | re.S,
)
LANGUAGES = {"bash", "yaml", "python", "text", "diff", "json", "console"}


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    mark: str  # the comment before it
    line: int  # of the page


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str | None = None, tested: str = "none") -> list[Block]:
    """Returns the blocks of a page in order, without those that are marked `not run`, or `tested` by another file."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        inner = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.M)
        found.append(Block(match["language"], inner, match["before"] or "", text[: match.start()].count("\n") + 1))
    ours = [each for each in found if not each.mark or f"tested: {tested}" in each.mark]
    return [each for each in ours if language in (None, each.language)]


def commands(page: Path) -> list[str]:
    """Returns the command lines of clusterdp on a page."""
    lines = [line for block in blocks(page, "bash") for line in block.text.splitlines()]
    outside = FENCE.sub("", page.read_text())
    lines += re.findall(r"^ {4}(clusterdp .*)", outside, re.M)
    return [line for line in lines if line.startswith("clusterdp ")]
