#!/usr/bin/env python3
"""Sort the differences between a site's records and those of a release by what causes them.

usage: causes.py SITE [--against RELEASE]

SITE is what record_site.py wrote: a folder `records`, and site.json with the site's settings. It is compared with the
records of the nearest release: the newest that is not newer, for a release does what the one before it did and what has
begun since. What a setting of the site decides (site-settings.txt) is told apart from the rest. The rest is the
release's, or nobody has explained it yet.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.slurm_facts import diff
from tests.slurm_facts.look import FOLDER
from tests.slurm_facts.record import Site

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "records"
RELEASES = sorted(path.name for path in RECORDS.iterdir())
TOLERANCE = 4  # seconds
JOB = re.compile(r"(?<![A-Za-z])J\d+")
# On which nodes a job runs is chance.
NODE = re.compile(r"\bn(?:\d+|\[[\d,-]+\])(?!\w)|\bHOST\b")


def nearest(version: str) -> str:
    """The newest recorded release that is not newer; the oldest if all are."""
    older = [release for release in RELEASES if release <= version]
    return older[-1] if older else RELEASES[0]


@dataclass(frozen=True)
class Rule:
    """A line of site-settings.txt."""

    setting: str
    recorded: str
    place: str
    what: str
    reason: str


def read_rules(path: Path = HERE / "site-settings.txt") -> list[Rule]:
    rules, setting, recorded = [], "", ""
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        if " | " in line:
            rules.append(Rule(setting, recorded, *(part.strip() for part in line.split(" | ", 2))))
        elif line:
            setting, recorded = (part.strip() for part in line.split(" = ", 1))
    return rules


def that_hold(rules: list[Rule], settings: dict[str, str]) -> list[Rule]:
    """Those of settings that are not as recorded."""
    known = (rule for rule in rules if rule.setting in settings)
    return [rule for rule in known if settings[rule.setting] not in rule.recorded.split(" or ")]


def about(difference: diff.Difference, rules: list[Rule]) -> list[Rule]:
    """Those that explain something at its place."""
    place = f"{difference.scenario}, {difference.place}"
    return [rule for rule in rules if rule.what != "?" and diff.glob(rule.place, place)]


def explained_by(difference: diff.Difference, rules: list[Rule]) -> tuple[str, ...]:
    """The settings that cause a difference; none if it is not explained."""
    rules = about(difference, rules)
    for rule in rules:
        if rule.what == "*":
            return (rule.setting,)
    both = (difference.expected, difference.got)
    if lines(both[0], rules) != lines(both[1], rules):
        return ()
    for rule in list(rules):  # those without which it would not do
        others = [other for other in rules if other is not rule]
        if lines(both[0], others) == lines(both[1], others):
            rules = others
    return tuple(dict.fromkeys(rule.setting for rule in rules))


def lines(value: Any, rules: list[Rule]) -> list[str] | None:
    """A value as lines, without what the rules' settings decide."""
    if value is None:
        return None
    values = value if isinstance(value, list) else [value]
    texts = [text if isinstance(text, str) else json.dumps(text) for text in values]
    for rule in rules:
        if rule.what == "order":
            texts.sort()
        else:
            texts = [text for text in (re.sub(rule.what, "", text) for text in texts) if text.strip()]
    return texts


# -- comparing --


def neutral(value: Any, site: Site | None) -> Any:
    """A record without what is chance on another cluster."""
    if isinstance(value, dict):
        named = {renamed(key, site): part for key, part in value.items()}
        return {key: renamed(part, site) if key == "label" else neutral(part, site) for key, part in named.items()}
    if isinstance(value, list):
        return [neutral(part, site) for part in value]
    if not isinstance(value, str):
        return value
    return NODE.sub("<node>", re.sub(*FOLDER, renamed(value, site)))


def renamed(text: str, site: Site | None) -> str:
    return site.renamed(text) if site else text


def with_ids_of(expected: dict[str, Any], got: dict[str, Any]) -> dict[str, Any]:
    """`got`, its jobs called as in `expected`: on a busy cluster other people's jobs take ids between."""
    names: dict[str, str] = {}
    theirs = diff.numbered(got["runs"])
    for label, run in diff.numbered(expected["runs"]).items():
        for part in ("command", "stdout", "stderr"):
            for mine, other in zip(text_of(run, part), text_of(theirs.get(label, {}), part), strict=False):
                if JOB.sub("J", mine) == JOB.sub("J", other):
                    for a, b in zip(JOB.findall(mine), JOB.findall(other), strict=True):
                        names.setdefault(b, a)
    text = JOB.sub(lambda job: names.get(job[0], job[0]), json.dumps(got))
    return dict(json.loads(text))


def text_of(run: dict[str, Any], part: str) -> list[str]:
    value = run.get(part, [])
    return [value] if isinstance(value, str) else value


def differences(release: str, records: Path, names: list[str], site: Site | None = None) -> Iterator[diff.Difference]:
    """What these records have otherwise than the release's, as far as that has them."""
    for name in names:
        if not (RECORDS / release / f"{name}.json").exists() or not (records / f"{name}.json").exists():
            continue
        recorded, here = (json.loads((folder / f"{name}.json").read_text()) for folder in (RECORDS / release, records))
        expected = neutral(recorded, site)
        yield from diff.compare(name, expected, with_ids_of(expected, neutral(here, None)), TOLERANCE)


# -- telling --


def report(folder: Path, against: str = "", site: Site | None = None) -> str:
    site_json = json.loads((folder / "site.json").read_text())
    release = against or nearest(site_json["slurm"])
    names = sorted(path.stem for path in (folder / "records").glob("*.json"))
    rules = that_hold(read_rules(), site_json["settings"])
    by_cause: dict[tuple[str, ...], list[diff.Difference]] = {}
    for difference in differences(release, folder / "records", names, site):
        by_cause.setdefault(explained_by(difference, rules), []).append(difference)
    rest = by_cause.pop((), [])
    others = {other: {(d.scenario, d.place): d.got for d in differences(release, RECORDS / other, names)}
              for other in RELEASES if other != release}  # fmt: skip
    missing = [name for name in names if not (RECORDS / release / f"{name}.json").exists()]
    suspects = [rule for rule in rules if rule.what == "?" and rest]
    text = [f"Slurm {site_json['slurm']} beside the records of {release}", ""]
    text += [f"Not recorded there: {', '.join(missing)}", ""] if missing else []
    text += [f"Because of the site's settings: {sum(map(len, by_cause.values()))} differences"]
    text += of_settings(by_cause, {rule.setting: rule.recorded for rule in rules}, site_json["settings"])
    text += ["", f"Because of the release, or not explained: {len(rest)} differences"]
    text += [f"  It may be {rule.setting}: {rule.reason}" for rule in suspects]
    return "\n".join([*text, *told(rest, others, rules)]) + "\n"


def of_settings(
    by_cause: dict[tuple[str, ...], list[diff.Difference]], recorded: dict[str, str], here: dict[str, str]
) -> list[str]:
    """Each setting with the places of its differences."""
    text = []
    for causes, found in sorted(by_cause.items()):
        values = (f"{name} is {here[name]}, recorded {recorded[name]}" for name in causes)
        text += [f"  {'; '.join(values)}", *(f"      {line}" for line in counted(map(place_of, found)))]
    return text


def place_of(difference: diff.Difference) -> str:
    """Where it is; a variable is the same in whatever process."""
    variable = re.match(r"env .*: (\S+)", difference.place)
    return f"variable {variable[1]}" if variable else f"{difference.scenario}, {difference.place}"


def counted(texts: Iterable[str]) -> list[str]:
    """Each text once."""
    return [f"{text}  ({count} times)" if count > 1 else text for text, count in Counter(texts).items()]


def told(found: list[diff.Difference], others: dict[str, dict[tuple[str, str], Any]], rules: list[Rule]) -> list[str]:
    """Each difference with its two sides, and which other recorded releases do what this site does. What settings
    decide is left out."""
    texts = []
    for difference in found:
        key, mine = (difference.scenario, difference.place), about(difference, rules)
        got = lines(difference.got, mine)
        like = " and ".join(name for name, known in others.items() if key in known and lines(known[key], mine) == got)
        bare = replace(difference, expected=lines(difference.expected, mine), got=got) if mine else difference
        texts.append((place_of(difference) + (f"  [as in {like}]" if like else ""), *diff.describe(bare)))
    text = []
    for (place, *sides), count in Counter(texts).items():
        text += [f"  {place}{f'  ({count} times)' if count > 1 else ''}", *(f"      {side}" for side in sides)]
    return text


def main() -> None:
    words = argparse.ArgumentParser(usage=(__doc__ or "").split("usage: ")[1].rstrip())
    words.add_argument("site", type=Path)
    words.add_argument("--against", choices=RELEASES, default="")
    found = words.parse_args()
    print(report(found.site, found.against), end="")


if __name__ == "__main__":
    main()
