"""Recording on somebody's cluster: what is run there, what is left there, and what the records give away."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core.shape import NodeShape, PartitionShape, Shape, SlurmConf
from tests.slurm import packages, release
from tests.slurm.testbed import ROOT
from tests.slurm_facts import causes, diff, look, record_site
from tests.slurm_facts.record import Normal, Site
from tests.waiting import wait_for

HERE = Path(__file__).parent
ROLES = ["--partition", "low=scavenge-long", "--partition", "short=debug"]


def foreign(**changes: object) -> Shape:
    """A cluster of other names than shape.json's."""
    partitions = (
        PartitionShape("gpu", default=True),
        PartitionShape("scavenge-long", tier=1, preempt="REQUEUE", grace_s=10),
        PartitionShape("debug", max_minutes=1),
    )
    nodes = tuple(NodeShape(f"rack1-gpu{i:02}") for i in range(7, 11))
    shape = Shape(nodes, partitions, SlurmConf(kill_wait_s=2, slurm_version="22.05.8"), "galaxy")
    return replace(shape, **changes)


def environ(cluster: FakeCluster) -> dict[str, str]:
    return {**cluster.environ(), "SLURM_CONF": str(cluster.folder / "slurm.conf")}


def record(cluster: FakeCluster, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, HERE / "record_site.py", *map(str, words)]
    return subprocess.run(command, env=environ(cluster), stdin=subprocess.DEVNULL, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site() -> Iterator[FakeCluster]:
    with FakeCluster(shape=foreign()) as cluster:
        yield cluster


# -- the plan --


def test_dry_run_lists_scenarios_and_submits_no_job(site: FakeCluster, tmp_path: Path) -> None:
    done = record(site, tmp_path / "out", "--dry-run", *ROLES)
    assert done.returncode == 0, done.stderr
    assert "main is gpu, low is scavenge-long, short is debug" in done.stdout
    assert "It will be compared with 22.05" in done.stdout
    assert re.search(r"To run: \d+ scenarios.* at most 4 nodes at a time, \d+ node minutes", done.stdout)
    assert re.search(r"^    .*\bnode-fail\b.*: changes nodes .* administrator$", done.stdout, re.MULTILINE)
    assert not (tmp_path / "out").exists()
    assert site.run("squeue", "-h", "-t", "all") == ""


def test_record_site_without_a_terminal_refuses_to_run_unless_yes_is_given(site: FakeCluster, tmp_path: Path) -> None:
    done = record(site, tmp_path / "out", "cancel-pending", *ROLES)
    assert (done.returncode, done.stderr) == (1, "Say --yes to run this.\n")
    assert site.run("squeue", "-h", "-t", "all") == ""


def test_dry_run_names_the_reason_for_each_impossible_scenario() -> None:
    nodes = tuple(NodeShape(f"c{i}", cpus=64, gpus=0) for i in range(120))
    shape = foreign(
        nodes=nodes, partitions=(PartitionShape("cpu", default=True),), settings=SlurmConf(min_job_age_s=10)
    )
    with FakeCluster(shape=shape) as cluster:
        said = record(cluster, "out", "--dry-run").stdout
    reasons = {
        "order": "fills all of the cluster",
        "errors": "asks for 99 nodes as for the impossible",
        "sbatch-more": "needs a partition with a limit of one minute",
        "cancel-pending": "asks after jobs that are over",
        "option-values": "needs two GPUs",
        "exits": "asks after jobs that are over",
        "together": "needs nodes of 8 CPUs",
    }
    for name, reason in reasons.items():
        assert re.search(rf"^    .*\b{name}\b.*: .*({reason})", said, re.MULTILINE), (name, said)


def test_scenario_cancelling_by_name_is_skipped_if_other_jobs_share_the_name(tmp_path: Path) -> None:
    with FakeCluster(shape=foreign()) as cluster:
        cluster.run("sbatch", "--hold", "--job-name=two", "--output=/dev/null", "--wrap=true")
        assert "cancels jobs by name" in record(cluster, tmp_path, "cancel-pending", "--dry-run", *ROLES).stdout


@pytest.mark.parametrize("name", look.scenarios())
def test_every_scenario_declares_only_known_needs(name: str) -> None:
    known = r"\d+ (node|minute)s?|root|alone|whole cluster|few nodes|low|preemption|short|gpus|8 cpus|no jobs named .*"
    for need in look.needs_of(name):
        assert re.fullmatch(rf"{known}|finished jobs|shared nodes", need), need


def test_unknown_partition_error_lists_the_existing_partitions(site: FakeCluster) -> None:
    done = record(site, "out", "--partition", "low=nosuch")
    assert done.returncode == 1
    assert done.stderr.startswith("partition low=nosuch: it does not exist. Name one of gpu,")


# -- names --


def test_partition_names_are_translated_for_drivers_and_back_in_records() -> None:
    site = Site(["n1"], {"main": "gpu", "low": "main"}, names={"prof-xavier-lab": "USER"})
    for driver, here in {
        "squeue -p low": "squeue -p main",
        "sbatch --partition=main --gres=gpu:1": "sbatch --partition=gpu --gres=gpu:1",
        "try SBATCH_PARTITION=low Partition": "try SBATCH_PARTITION=main Partition",
        "scontrol show partition main": "scontrol show partition gpu",
        "touch stop.main; low deaf # the main job": "touch stop.main; low deaf # the main job",
    }.items():
        assert site.driver(driver) == here
    long = Site(["n1"], {"low": "scavenge-long"})
    assert long.renamed(" J5 scavenge-    later") == " J5       low    later"
    for here, record in {
        "       gpu    plain": "      main    plain",
        "gpu*       up": "main*      up",
        "Partition=gpu Gres=gpu:2 gres/gpu=2": "Partition=main Gres=gpu:2 gres/gpu=2",
        "[gpu] [main]": "[main] [low]",
        "main: gpu: x": "low: main: x",
        "prof-xavi+": "USER",
    }.items():
        assert site.renamed(here) == record


@pytest.fixture
def cluster(site: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> look.Cluster:
    for name, value in environ(site).items():
        monkeypatch.setenv(name, value)
    return look.look({"low": "scavenge-long"}, [], account="prof-x")


def test_record_replaces_site_names_by_fixed_words(cluster: look.Cluster, tmp_path: Path) -> None:
    site = look.site_of(replace(cluster, hosts={*cluster.hosts, "cn0001", "login-a"}), "prof-x", "", 1)
    machines = "cn0001 cn[0001-3] rack1-gpu[07-08] login-a"
    folders = f"{tmp_path}/out {Path.home()}/data /gpfs/lab/data /var/spool/slurm/job10001/slurm_script"
    said = Normal(tmp_path, 10000, 10002, site).text(f"{machines} {folders} prof-x galaxy scavenge-long")
    machines, folders = "n0001 n[0001-3] n[07-08] n0", "$WORK/out $HOME/data <folder> $SPOOL/jobJ1/slurm_script"
    assert said == f"{machines} {folders} USER <cluster> low"


def test_leaks_reports_lines_with_remaining_site_names(cluster: look.Cluster, tmp_path: Path) -> None:
    text = "fine\nran on rack1-gpu08\nof prof-x\n/gpfs/projects/secret/data\nin $WORK/out on n1\ncluster galaxy\n"
    (tmp_path / "record.json").write_text(text)
    assert [place.split(": ")[0] for place in record_site.leaks(tmp_path, cluster)] == [
        f"record.json:{line}" for line in (2, 3, 4, 6)
    ]


# -- recording --


@pytest.mark.slow
def test_recording_of_a_different_site_differs_only_by_its_settings(site: FakeCluster, tmp_path: Path) -> None:
    done = record(site, tmp_path, "--yes", "plain", "cancel", "cancel-pending", *ROLES)
    report = (tmp_path / "report.txt").read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TROUBLE" not in done.stdout
    settings, rest = report.split("\nBecause of the release, or not explained: ")
    assert rest == "0 differences\n", report
    assert "KillWait is 2 sec, recorded 5 sec\n      cancel, run what Slurm wrote: stdout" in settings
    kept = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert not re.search("rack1|scavenge|galaxy|fakeslurm", kept)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records", "report.txt", "site.json"]


HEARD = """
import os, signal, sys
signal.signal(int(sys.argv[1]), signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_sigint_or_sighup_cancels_only_the_jobs_of_the_recorder(number: signal.Signals, tmp_path: Path) -> None:
    with FakeCluster(shape=foreign()) as cluster:
        words = [sys.executable, HERE / "record_site.py", tmp_path, "--yes", "cancel"]
        # A test may itself run where one of them is ignored: SIGHUP is under nohup.
        words = [sys.executable, "-c", HEARD, str(int(number)), *words]
        recorder = subprocess.Popen(words, env=environ(cluster), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            wait_for("its job", lambda: "cancel" in cluster.run("squeue", "-h", "-t", "R", "-o", "%j"), 60)
            mine = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 100").strip()
            recorder.send_signal(number)
            _, said = recorder.communicate(timeout=60)
        finally:
            recorder.kill()
        assert (recorder.returncode, said.decode()) == (
            130, "stopped; its jobs are cancelled. What is recorded stays.\n"
        )  # fmt: skip
        assert cluster.run("squeue", "-h", "-o", "%A").split() == [mine]


# -- causes --


def test_nearest_returns_the_latest_recorded_release_not_newer_or_else_the_oldest() -> None:
    versions = {"23.11.4": "22.05", "24.11.0": "24.11", "25.05.1": "24.11", "26.11.2": "26.05", "20.11.9": "22.05"}
    assert {version: causes.nearest(version) for version in versions} == versions


def as_site(folder: Path, release: str, *names: str, version: str = "", **settings: str) -> Path:
    """The records of a release, as if a site of these settings had made them."""
    (folder / "records").mkdir(parents=True)
    for name in names:
        text = (HERE / "records" / release / f"{name}.json").read_text()
        (folder / "records" / f"{name}.json").write_text(text)
    about = {"slurm": version or release, "settings": settings}
    (folder / "site.json").write_text(json.dumps(about))
    return folder


def test_differences_due_to_the_release_are_reported_with_matching_releases(tmp_path: Path) -> None:
    said = causes.report(as_site(tmp_path, "24.11", "plain", version="23.11.4"))
    assert "Slurm 23.11.4 beside the records of 22.05" in said
    settings, rest = said.split("Because of the release, or not explained")
    assert "Because of the site's settings: 0 differences" in settings
    assert "  variable SLURM_OOM_KILL_STEP  [as in 24.11 and 26.05]  (5 times)\n      -(missing)\n      +0\n" in rest
    assert "variable SLURM_JOB_END_TIME" in rest


def test_site_setting_explains_only_its_own_differences_in_the_report(tmp_path: Path) -> None:
    folder = as_site(tmp_path, "22.05", "cancel", KillWait="30 sec", JobSubmitPlugins="set")
    path = folder / "records" / "cancel.json"
    later = json.loads(path.read_text())
    for who in later["events"]:
        later["events"][who] = [[when + 25 * ("alive" in what), what] for when, what in later["events"][who]]
    path.write_text(json.dumps(later))
    said = causes.report(folder)
    assert "KillWait is 30 sec, recorded 5 sec\n      cancel, events batch\n" in said
    assert said.endswith("not explained: 0 differences\n")
    later["events"]["batch"] = later["events"]["batch"][:-1]
    path.write_text(json.dumps(later))
    assert (
        causes.report(folder)
        .split("not explained: ")[1]
        .startswith(
            "1 differences\n  It may be JobSubmitPlugins: it changes or refuses requests\n  cancel, events batch\n"
        )
    )


def test_gaps_between_job_ids_are_not_a_difference(tmp_path: Path) -> None:
    folder = as_site(tmp_path, "22.05", "cancel-pending")
    path = folder / "records" / "cancel-pending.json"
    path.write_text(re.sub(r"\bJ(\d+)", lambda job: f"J{int(job[1]) * 3 + 5}", path.read_text()))
    assert causes.report(folder).endswith("not explained: 0 differences\n")


def test_cause_rules_are_well_formed_and_do_not_explain_exit_codes(cluster: look.Cluster) -> None:
    known = cluster.settings().keys()
    rules = causes.read_rules()
    assert len(rules) > 50
    for rule in rules:
        assert rule.setting in known or re.fullmatch(r"[A-Z]\w+", rule.setting), rule
        if rule.what != "?":
            assert not diff.glob(rule.place, "scenario, run x: exit"), rule  # it would explain too much
        assert rule.what in ("*", "?", "order") or re.compile(rule.what)


# -- a real one --


@pytest.fixture
def folder_for_all() -> Iterator[Path]:
    """pytest's own folders are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="clusterdp-site-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.slurm
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["22.05", "24.11"])
def test_ordinary_user_recording_on_real_slurm_separates_settings_from_release_differences(
    name: str, folder_for_all: Path
) -> None:
    """24.11 beside the records of 22.05: its own rules are told, and no setting is blamed for them."""
    if reason := packages.why_not():
        pytest.skip(reason)
    if release.is_entered():
        pytest.skip("a release within a release is none")
    try:
        release.fetch(name)
    except (release.NoRelease, OSError) as error:
        pytest.skip(f"Slurm {name} cannot be had here: {error}")
    in_release = [sys.executable, "-m", "tests.slurm.release", name] if name != "22.05" else []
    words = [*in_release, sys.executable, "-m", "tests.slurm_facts.foreign_site", str(folder_for_all)]
    words += ["--yes", "--against", "22.05", "plain", "cancel", "hold", "exits"]
    done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = (folder_for_all / "report.txt").read_text()
    settings, rest = report.split("\nBecause of the release, or not explained: ")
    for cause in ("KillWait is 10 sec", "SelectTypeParameters is CR_CORE_MEMORY", "TaskPlugin is task/affinity"):
        assert cause in settings
    if name == "22.05":
        assert rest == "0 differences\n", report
    else:
        assert "variable SLURM_JOB_END_TIME" in rest
        assert "RaisedSignal:9(Killed)" in rest
    kept = "".join(path.read_text() for path in folder_for_all.rglob("*") if path.is_file())
    assert not re.search("nobody|gpu-a|scavenge|clusterdp-slurm", kept)
