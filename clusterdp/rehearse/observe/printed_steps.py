"""The steps that a program prints, read from the lines with the counter of its training.

A counter's name is the text before the number in its lines. A counter that starts again in each epoch is usable if its
lines have the epoch: the counter's name then contains the first epoch and the steps per epoch, like `epoch # batch
@1+500`. The name of a progress bar contains the bar's total, like `train: #| @/100`, because after a resume, a bar may
count only the steps that are left.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from clusterdp.batch.files.rank_logs import LogFile, ends_in, text_of
from clusterdp.operate.logs.rank_log import RankLog
from clusterdp.rundir import Attempt

_END = r"(?!\d|\.\d)"  # the step must be an integer: `35.4` is not a step
_STEP = re.compile(
    rf"(?i)\b(?:\w+_)?(?:step|iter|iteration|batch|update|it)s?\b(?:\W{{0,3}}|\s*)(?P<step>\d+){_END}"  # `iter 12:`
    r"|\b(?P<done>\d+)/ *(?P<all>\d+) *(?:\[|\b(?:batch|step|iter)\w*)"  # `12/60 [` of a progress bar, `12/ 60 batches`
    r"|\[ *(?P<of>\d+)/(?P<most>\d+)\]"  # `Epoch: [1][12/60]`
    r"|^ *(?P<first>\d+) *[|:] *(?:train[ _]?)?loss\b"  # matches `12 | loss 3.4`
)
_EPOCH = re.compile(rf"(?i)\bepochs?\b\W{{0,3}}(\d+){_END}")
_NUMBER = re.compile(r"[-+]?\d[\d.,:e+-]*")
_BAR = re.compile(r"\|[ #\u2588-\u258f]*\|")  # the drawn part of a bar, which grows from line to line
_BY_EPOCH = re.compile(r"(.*) @(\d+)\+(\d+)")
_OVER = re.compile(r"(.*) @/(\d+)")
TAIL = 4096  # number of last bytes of a log in which the last step is searched
CHOSEN_S = 0.5  # seconds between two choices of a counter, because each choice uses all lines until then


@dataclass(frozen=True)
class _Told:
    """A step in one printed line."""

    epoch: int
    step: int
    of: int  # the total number of steps, or of steps in the epoch; 0 if the line has no total
    line: str = field(default="", compare=False)  # the whole line

    def of_all(self, steps: int) -> int:
        """Returns the step of `steps` in all, even if the line's progress bar counts only the steps that are left."""
        return self.step + (steps - self.of if 0 < self.of < steps else 0)


def steps_of(text: str, counter: str = "") -> list[int]:
    """Returns the steps that this counter shows in a text, or without a `counter`, of the likeliest counter."""
    return [step for step, _ in lines_of_steps(text, counter)]


def lines_of_steps(text: str, counter: str = "") -> list[tuple[int, str]]:
    """Returns the steps of steps_of(), each with its line."""
    found = _counters(text)
    before, number = _reading(counter or _likeliest(found))
    return [(number(told), told.line) for told in found.get(before, [])]


def _reading(counter: str) -> tuple[str, Callable[[_Told], int]]:
    """Returns the text before the counter's number, and the function that computes the step."""
    if by_epoch := _BY_EPOCH.fullmatch(counter):
        first, each = int(by_epoch[2]), int(by_epoch[3])
        return by_epoch[1], lambda told: (told.epoch - first) * each + told.of_all(each)
    if over := _OVER.fullmatch(counter):
        return over[1], lambda told: told.of_all(int(over[2]))
    return counter, lambda told: told.step


def counter_of(text: str) -> str:
    """Returns the name of the training's counter, or "" if there is none. Unlike a counter of an evaluation, the
    training's counter never goes back."""
    return _likeliest(_counters(text))


def read_steps(attempt: Attempt, counter: str = "", rank: int = 0) -> list[int]:
    """Returns the steps that a rank has printed; an empty list if it has no log."""
    return steps_of(text_of(str(attempt.logs), rank), counter)


def last_step(log: LogFile, counter: str = "") -> int | None:
    """Returns the last step in the last TAIL bytes of rank 0's log, or None."""
    steps = steps_of(ends_in(log, TAIL).get(0, b"").decode("utf-8", "replace"), counter)
    return steps[-1] if steps else None


class GrowingLog:
    """The log of rank 0, whose counter is not known yet, and which several threads may read.

    The whole log is read, because only its begin shows the first epoch of a counter that starts again in each epoch.
    """

    def __init__(self, log: LogFile):
        self._log = RankLog(log, lambda rank: rank == 0)
        self._rest = ""  # the last line, which may be incomplete
        self._found: dict[str, list[_Told]] = {}
        self._counter = ""
        self._chosen_at = 0.0
        self._lock = threading.Lock()

    def last_step(self) -> int | None:
        with self._lock:
            if self._has_more() and (not self._counter or time.monotonic() - self._chosen_at > CHOSEN_S):
                self._counter, self._chosen_at = _likeliest(self._found), time.monotonic()
            before, number = _reading(self._counter)
            told = [*self._found.get(before, [])[-1:], *_counters(self._rest).get(before, [])]
            return number(told[-1]) if told else None

    def _has_more(self) -> bool:
        """Reads the text that the log has gained. Returns whether this text has complete lines."""
        new = "".join(text for _, text in self._log.text(final=not self._log.file.is_shared))
        *lines, self._rest = re.split(r"[\r\n]", self._rest + new)
        for before, told in _counters("\n".join(lines)).items():
            self._found.setdefault(before, []).extend(told)
        return bool(lines)


def _counters(text: str) -> dict[str, list[_Told]]:
    found: dict[str, list[_Told]] = {}
    for line in re.split(r"[\r\n]", text):
        if line.startswith(("slurmstepd:", "srun:")):  # a step of Slurm is not a step of the training
            continue
        for match in _STEP.finditer(line):
            group = next(name for name in ("step", "done", "of", "first") if match[name])
            if group == "done" and (int(match[group]) == 0 or "<?" in line):
                continue  # this line was printed before the bar's first step, as also after a resume
            before = line[: match.start(group)]
            epoch = [*_EPOCH.finditer(before)]
            of = int(match["all"] or match["most"] or 0)
            told = _Told(int(epoch[-1][1]) if epoch else -1, int(match[group]), of, line)
            found.setdefault(_BAR.sub("|", _NUMBER.sub("#", before)).strip().lower() or "^", []).append(told)
    return found


def _likeliest(found: dict[str, list[_Told]]) -> str:
    """Returns the name of the counter that never goes back and has most values. Of several such counters, returns the
    shortest name."""
    forward: dict[str, Set[object]] = {}
    for name, told in found.items():
        steps = [each.step for each in told]
        if all(each.step == each.of for each in told):
            continue  # all bars are finished: this is a short activity, such as loading weights
        if len(set(steps)) == 1:
            continue  # this is a setting: `batch 64`, or `Steps: 10` in the line of each epoch
        if steps == sorted(steps):
            over = {each.of for each in told}
            forward[f"{name} @/{told[0].of}" if over == {told[0].of} != {0} else name] = set(steps)
        elif all(a.epoch >= 0 and (a.epoch, a.step) <= (b.epoch, b.step) for a, b in itertools.pairwise(told)):
            in_each = max(each.of for each in told) or max(steps) + 1
            forward[f"{name} @{told[0].epoch}+{in_each}"] = {*told}
    return max(forward, key=lambda name: (len(forward[name]), -len(name)), default="")
