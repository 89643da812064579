#!/usr/bin/env python3
"""Record the scenarios on a cluster that is not yours alone, with ordinary rights, and say what differs.

usage: record_site.py OUT [SCENARIO...] [--dry-run] [--yes]
                      [--partition ROLE=NAME]... [--nodes NAME,NAME...] [--reservation NAME]
                      [--account NAME] [--qos NAME] [--patience N] [--against RELEASE]

It looks at the cluster first and says what it will run and what not, and why; --dry-run ends there. OUT must be seen by
the nodes; it gets the records, site.json and report.txt, without names of people, machines and folders. See README.md.

ROLE is main (otherwise the default partition), low (its jobs are requeued for those of main) or short (one minute).
--patience 10: jobs may wait ten times as long as on an idle cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.slurm_facts import causes, look
from tests.slurm_facts.record import Site, record


def main() -> int:
    words = _words()
    try:
        roles = dict(word.split("=", 1) for word in words.partition)
        nodes = look.ask("scontrol", "show", "hostnames", words.nodes).split() if words.nodes else []
        cluster = look.look(roles, nodes, words.reservation, words.account)
        unknown = set(words.scenario) - set(look.scenarios())
        if unknown:
            known = " ".join(look.scenarios())
            raise look.NotPossible(f"{', '.join(sorted(unknown))}: no such scenario. They are {known}.")
        plan = {name: look.why_not(look.needs_of(name), cluster) for name in words.scenario or look.scenarios()}
    except look.NotPossible as error:
        print(error, file=sys.stderr)
        return 1
    names = [name for name, reason in plan.items() if not reason]
    print(describe(plan, cluster, words.against), flush=True)
    if words.dry_run or not names:
        return 0
    if not words.yes and not _agreed():
        return 1
    site = look.site_of(cluster, words.account, words.qos, words.patience)
    return play(words.out, names, plan, cluster, site, words.against)


def _words() -> argparse.Namespace:
    words = argparse.ArgumentParser(usage=(__doc__ or "").split("usage: ")[1].rstrip())
    words.add_argument("out", type=Path)
    words.add_argument("scenario", nargs="*")
    words.add_argument("--partition", action="append", default=[], type=_role)
    for name in ("nodes", "reservation", "account", "qos"):
        words.add_argument(f"--{name}", default="")
    words.add_argument("--patience", type=int, default=1)
    words.add_argument("--against", choices=causes.RELEASES, default="")
    words.add_argument("--dry-run", action="store_true")
    words.add_argument("--yes", action="store_true")
    return words.parse_intermixed_args()


def _role(word: str) -> str:
    if not re.fullmatch(r"(main|low|short)=\S+", word):
        raise argparse.ArgumentTypeError(f"{word}: not main=NAME, low=NAME or short=NAME")
    return word


def describe(plan: dict[str, str | None], cluster: look.Cluster, against: str) -> str:
    """What will be run, what it takes, and what will not be run for which reason."""
    names = [name for name, reason in plan.items() if not reason]
    needs = {name: look.needs_of(name) for name in names}
    minutes = {name: look.amount(needs[name], "minute", 1) for name in names}
    node_minutes = sum(look.amount(needs[name], "node", 0) * minutes[name] for name in names)
    most = max((look.amount(needs[name], "node", 0) for name in names), default=0)
    idle = sum(node.state == "idle" for node in cluster.nodes)
    release = against or causes.nearest(cluster.version)
    why = "" if against else ", the newest recorded one that is not newer" * (release <= cluster.version)
    roles = ", ".join(f"{role} is {name}" for role, name in cluster.roles.items())
    lines = [f"Slurm {cluster.version}. It will be compared with {release}{why}."]
    lines.append(f"Partitions: {roles}. In main {len(cluster.nodes)} nodes can be used; {idle} of them are idle.")
    lines.append(f"To run: {len(names)} scenarios, one after the other: at most {most} nodes at a time, "
                 f"{node_minutes} node minutes, {sum(minutes.values())} minutes if jobs start at once. "
                 f"Jobs that are left are cancelled.")  # fmt: skip
    lines += [f"    {' '.join(names[i : i + 8])}" for i in range(0, len(names), 8)]
    reasons: dict[str, list[str]] = {}
    for name, reason in plan.items():
        if reason:
            reasons.setdefault(reason, []).append(name)
    lines += ["Not to run:"] if reasons else []
    lines += [f"    {' '.join(found)}: {reason}" for reason, found in reasons.items()]
    return "\n".join(lines)


def _agreed() -> bool:
    if not sys.stdin.isatty():
        print("Say --yes to run this.", file=sys.stderr)
        return False
    return input("Run this? [y/N] ").strip().lower() in ("y", "yes")


def play(
    out: Path, names: list[str], plan: dict[str, str | None], cluster: look.Cluster, site: Site, against: str
) -> int:
    (out / "records").mkdir(parents=True, exist_ok=True)
    work = out.resolve() / "work"  # not /tmp: the nodes must see it
    work.mkdir(exist_ok=True)
    os.environ["FACTS_TMP"] = str(work)
    for number in (signal.SIGTERM, signal.SIGHUP):  # a lost connection ends it as Ctrl-C does, unless under nohup
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    not_run = {name: reason for name, reason in plan.items() if reason}
    about = {"slurm": cluster.version, "settings": of_table(cluster.settings()), "not run": not_run}
    (out / "site.json").write_text(json.dumps(about, indent=1) + "\n")
    try:
        for name in names:
            if reason := look.why_not(look.needs_of(name), look.again(cluster)):
                print(f"{name}: left out now: {reason}")
            else:
                record(name, out / "records", site)
    except KeyboardInterrupt:
        print("stopped; its jobs are cancelled. What is recorded stays.", file=sys.stderr)
        return 130
    except subprocess.CalledProcessError as error:
        why = " Name what it needs with --account, --qos or --partition." if error.cmd[0] == "sbatch" else ""
        print(f"{error.cmd[0]}: exit {error.returncode}.{why}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    # A site's name may be a word of the records, such as gpu: then it is replaced on both sides. But theirs are theirs.
    words = {role: name for role, name in site.partitions.items() if name not in ("main", "low", "short")}
    (out / "report.txt").write_text(causes.report(out, against, replace(site, partitions=words)))
    print(f"Read {out}/report.txt.")
    return tell_leaks(out, cluster)


def of_table(settings: dict[str, str]) -> dict[str, str]:
    """Only settings that explain something: others are the site's own affair."""
    wanted = {rule.setting for rule in causes.read_rules()}
    return {name: value for name, value in sorted(settings.items()) if name in wanted}


def tell_leaks(out: Path, cluster: look.Cluster) -> int:
    """Whether the folder can be given away."""
    found = [*leaks(out, cluster)]
    for place in found:
        print(f"{place}. Replace it before you give the folder away.", file=sys.stderr)
    if not found:
        print(f"No names of you, your account, machines or folders are in {out}. It can be attached to an issue.")
    return 1 if found else 0


def leaks(out: Path, cluster: look.Cluster) -> list[str]:
    """Names of people, accounts, machines and folders that are in the files still, each with its place."""
    names = {re.escape(name) for name in look.secret_names(cluster) if len(name) > 2 and name != "root"}
    patterns = [rf"(?<![\w/:.-]){name}(?![\w:/=-])" for name in names]
    patterns += [pattern for pattern, _ in look.secret_patterns(cluster)]
    any_of = re.compile("|".join(patterns))
    return [
        f"{path.relative_to(out)}:{number}: {line.strip()[:80]}"
        for path in sorted(out.rglob("*")) if path.is_file()
        for number, line in enumerate(path.read_text().splitlines(), 1) if any_of.search(line)
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
