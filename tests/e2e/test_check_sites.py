"""`clusterdp check` beside Slurms of several sites: a job with an error never starts, and one that sbatch refuses, or
that waits for ever, has one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.check_sites import ACCOUNTED, BASE, COMMON, PART_LIMITS, QOS, QUICK, SITES
from tests.e2e.cluster import Cluster
from tests.e2e.ordinary_user import AS_USER, open_to_all, own_folder, own_python, own_variables
from tests.slurm import packages
from tests.slurm.testbed import RealSlurm
from tests.waiting import wait_for

# Reasons that pass: a node comes back, a time is reached, an administrator releases.
PASSES = ("ReqNodeNotAvail", "Reservation", "BeginTime", "JobHeldUser")
PART_OF = "corecnt=1 starttime=now duration=600 flags=ignore_jobs,overlap"
RESERVATIONS = (
    f"create reservation reservationname=theirs users=root nodes=n6 {PART_OF}",
    f"create reservation reservationname=ours users=games nodes=n6 {PART_OF}",
    "create reservation reservationname=later users=games nodes=n6 starttime=now+300days duration=60",
)
NODES = (  # a new configuration undoes them
    "update nodename=n5 state=down reason=test",
    "update nodename=n3 availablefeatures=big activefeatures=big",
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of an ordinary user."""
    with own_folder() as made:
        yield made


@pytest.mark.slurm
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SITES)
def test_errors_of_check_agree_with_a_real_slurm_on_each_site(name: str, folder: Path) -> None:
    if reason := packages.why_not():
        pytest.skip(reason)
    site = SITES[name]
    configs = [*COMMON, *(ACCOUNTED if site.accounts else ())]
    with RealSlurm(nodes=6, changes={**BASE, **site.changes}) as slurm:
        open_to_all(slurm)
        for line in site.accounts.splitlines():
            run(slurm, "sacctmgr", "-i", *line.split())
        if site.accounts or ask(slurm, "sinfo", "--version").stdout.split()[-1] < "26.05":
            _configure(slurm, QOS)
        for line in RESERVATIONS:
            run(slurm, "scontrol", *line.split())
        wrong = []
        for part_limits in PART_LIMITS:
            enforce(slurm, part_limits)
            judged = judge(os.environ | slurm.environ(), configs, folder, AS_USER)
            print(f"{name}, EnforcePartLimits={part_limits}: {summary(judged)}")
            wrong += [f"EnforcePartLimits={part_limits} {each}" for each in map(disagreement, judged) if each]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_errors_of_check_agree_with_slurm_on_a_plain_cluster(cluster: Cluster, tmp_path: Path) -> None:
    judged = judge(cluster.environ(), QUICK, tmp_path)
    assert not [*filter(None, map(disagreement, judged))], summary(judged)


def _configure(slurm: RealSlurm, changes: Mapping[str, str]) -> None:
    conf = slurm.folder / "slurm.conf"
    text = conf.read_text()
    for line, changed in changes.items():
        assert line in text
        text = text.replace(line, changed)
    conf.write_text(text)


def enforce(slurm: RealSlurm, part_limits: str) -> None:
    conf = slurm.folder / "slurm.conf"
    conf.write_text(re.sub("^EnforcePartLimits=.*", f"EnforcePartLimits={part_limits}", conf.read_text(), flags=re.M))
    run(slurm, "scontrol", "reconfigure")
    wanted = re.compile(rf"^EnforcePartLimits\s*= {part_limits}$", re.M)
    wait_for(part_limits, lambda: wanted.search(ask(slurm, "scontrol", "show", "config").stdout), 30)
    for line in NODES:
        run(slurm, "scontrol", *line.split())
    idle = ("sinfo", "--noheader", "--partition=main", "--states=idle", "--format=%D")
    wait_for("four idle nodes", lambda: ask(slurm, *idle).stdout.strip() == "4", 30)


def ask(slurm: RealSlurm, *words: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | slurm.environ()
    return subprocess.run(words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def run(slurm: RealSlurm, *words: str) -> None:
    done = ask(slurm, *words)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"


def judge(
    environ: Mapping[str, str], configs: Sequence[Mapping[str, Any]], folder: Path, user: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """In the order of the configs. user: the words before a command that make it another user's."""
    environ = {**environ, **own_variables(folder)}
    python = own_python("clusterdp.check, pytest", folder, environ) if user else sys.executable
    words = [*user, python, "-m", "tests.e2e.judge_configs"]
    given = "".join(f"{json.dumps(each)}\n" for each in configs)
    done = subprocess.run(words, cwd=folder, env=environ, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def disagreement(judged: Mapping[str, Any]) -> str:
    """Empty where check's levels agree with what Slurm does."""
    levels = {level for level, *_ in judged["findings"]}
    does, _, reason = judged["slurm"].partition(": ")
    if reason.startswith("PartitionDown"):  # hides what else a job may wait for
        return ""
    passes = does == "starts" or (does == "waits" and reason.startswith(PASSES))
    if passes == ("error" not in levels):
        return ""
    return f"{json.dumps(judged['asked'])}: Slurm {judged['slurm']}, check says {judged['findings']}"


def summary(judged: Sequence[Mapping[str, Any]]) -> str:
    kinds = [each["slurm"].partition(":")[0] for each in judged]
    wrong = [each for each in map(disagreement, judged) if each]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    return f"{len(kinds)} configs ({counts}), {len(wrong)} wrong" + "".join(f"\n{each}" for each in wrong)
