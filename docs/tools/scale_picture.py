"""Draws docs/scale.svg from the table of docs/scale.md: `python docs/tools/scale_picture.py`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

DOCS = Path(__file__).parents[1]
TABLE = "| ranks | sockets of a rank |"
# Before the agents, with gloo's meshes (commit 219ac790, the same machine), by ranks.
BEFORE: tuple[Mapping[int, float], ...] = (
    {8: 17, 16: 33, 64: 129, 256: 513},
    {8: 16, 16: 23, 64: 58, 256: 434},
    {8: 2.6, 16: 2.6, 64: 2.9, 256: 4.9},
)
TITLES = ("sockets of a rank", "CPU of the start, ms a rank", "CPU of an exchange of flags, ms a rank")
COLUMNS = (1, 4, 5)  # of the table
PANEL, HEIGHT, LEFT, TOP, BOTTOM = 300, 250, 52, 44, 40
RANKS = (8, 16, 64, 256, 512)
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #24292f } .axis { stroke: #d0d7de } .card { fill: #ffffff }
.before { fill: #b35900; stroke: #b35900 } .now { fill: #0969da; stroke: #0969da } polyline { stroke-width: 2.5 }
polyline.before, polyline.now { fill: none } text.before, text.now { stroke: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .axis { stroke: #3d444d } .card { fill: #0d1117 }
.before { fill: #f0883e; stroke: #f0883e } .now { fill: #58a6ff; stroke: #58a6ff } }"""


def table(page: str) -> list[list[float]]:
    """Returns the numbers of the rows of the page's table."""
    rows = page[page.index(TABLE) :].split("\n\n")[0].splitlines()[2:]
    return [[float(cell.replace(",", "")) for cell in row.strip("| ").split(" | ")] for row in rows]


def panel(left: float, title: str, lines: Mapping[str, Mapping[int, float]]) -> Iterable[str]:
    values = [value for line in lines.values() for value in line.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    bottom, right = HEIGHT - BOTTOM, left + PANEL - LEFT - 16

    def x(ranks: float) -> float:
        return left + (right - left) * math.log(ranks / RANKS[0]) / math.log(RANKS[-1] / RANKS[0])

    def y(value: float) -> float:
        return bottom - (bottom - TOP) * (math.log10(value) - low) / (high - low)

    yield f'<text x="{left - 34}" y="24" font-weight="600">{title}</text>'
    for power in range(low, high + 1):
        at = y(10**power)
        yield f'<line class="axis" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{10**power:g}</text>'
    for ranks in RANKS:
        yield f'<text x="{x(ranks):.1f}" y="{bottom + 20}" text-anchor="middle">{ranks}</text>'
    for name, line in lines.items():
        points = [(x(ranks), y(value)) for ranks, value in line.items()]
        yield f'<polyline class="{name}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>'
        yield from (f'<circle class="{name}" cx="{a:.1f}" cy="{b:.1f}" r="3.5"/>' for a, b in points)
        a, b = points[-1]
        yield f'<text class="{name}" x="{a:.1f}" y="{b - 10:.1f}" text-anchor="end">{name}</text>'


def picture(rows: list[list[float]]) -> str:
    width = PANEL * len(TITLES)
    parts = [f'<rect class="card" width="{width}" height="{HEIGHT}" rx="8"/>']
    for number, (title, column, before) in enumerate(zip(TITLES, COLUMNS, BEFORE, strict=True)):
        now = {int(row[0]): row[column] for row in rows}
        parts += panel(PANEL * number + LEFT, title, {"before": before, "now": now})
    parts.append(f'<text x="{width / 2}" y="{HEIGHT - 4}" text-anchor="middle">ranks</text>')
    head = f'<svg viewBox="0 0 {width} {HEIGHT}" xmlns="http://www.w3.org/2000/svg">\n<style>\n{STYLE}\n</style>\n'
    return head + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    (DOCS / "scale.svg").write_text(picture(table((DOCS / "scale.md").read_text())))
