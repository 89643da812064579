"""Filters: selects the runs that `clusterdp list` shows, by --state, --name, --tag and --since."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from clusterdp.errors import ConfigError
from clusterdp.operate.find.since import read_since
from clusterdp.operate.record.run_state import RunState
from clusterdp.wording import did_you_mean

ALIASES = {  # words of Slurm and of habit
    **dict.fromkeys(("pending", "queued"), "waiting"),
    **dict.fromkeys(("completed", "complete", "finished", "success"), "done"),
    **dict.fromkeys(("error", "crashed"), "failed"),
    "canceled": "cancelled",
}


@dataclass(frozen=True)
class Filters:
    states: frozenset[str] = frozenset()  # empty: any
    name: str = ""
    tag: str = ""
    since: float = 0.0

    @property
    def look_inside(self) -> bool:
        """Whether any filter needs the content of a run folder."""
        return bool(self.states or self.name or self.tag)

    def take(self, text: str, typed: Callable[[str], str]) -> bool:
        """Returns whether to show a run. `text` is the summary as JSON. `typed` returns the word to type for a run
        folder."""
        # A search in the JSON text saves parsing ten thousand summaries. Quotes within JSON strings are escaped, so the
        # pattern matches only a key. A metric may be called "state", but "why" does not follow a metric.
        if self.states and not any(f'"state":"{state}","why":' in text for state in self.states):
            return False
        if not (self.name or self.tag):
            return True
        summary = json.loads(text)
        if self.name:
            names = (typed(summary["run"]), summary["run"].rpartition("/")[2], summary["name"])
            if not any(fnmatchcase(name, self.name) for name in names):
                return False
        return not self.tag or self.tag.lower() in re.split(r"[\s,;]+", summary["note"].lower())


def make_filters(state: str | None, name: str | None, tag: str | None, since: str | None, now: float) -> Filters:
    """Returns the Filters that the options of the command line describe. Raises ConfigError for an invalid option."""
    return Filters(_states(state), name or "", tag or "", 0.0 if since is None else read_since(since, now))


def _states(words: str | None) -> frozenset[str]:
    if words is None:
        return frozenset()
    known = [state.value for state in RunState]
    named = [word.strip().lower() for word in words.split(",") if word.strip()]
    for word in named or [words]:
        if word not in known and word not in ALIASES:
            raise ConfigError(
                f"--state {word}: is not a state. {did_you_mean(word, known, f'Write {_any_of(known)}.')}"
            )
    return frozenset(ALIASES.get(word, word) for word in named)


def _any_of(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
