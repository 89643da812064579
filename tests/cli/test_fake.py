"""`clusterdp fake`: every verb, as a user types it."""

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterdp.cli import main
from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core.job_ids import fresh_job_id


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    place = tmp_path / "a cluster"
    yield str(place)
    if (place / "up").exists():
        FakeCluster.attach(place).down()


def fake(place: str, *words: str) -> int:
    return main(["fake", words[0], "--dir", place, *words[1:]])


def test_fake_verbs_start_break_show_and_stop_a_cluster(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fake(place, "up", "--nodes", "2", "--quick", "--flaky", "1", "--seed", "3") == 0
    assert f"env --dir '{place}'" in capsys.readouterr().out
    cluster = FakeCluster.attach(Path(place))
    with pytest.raises(Exception, match="Batch job submission failed"):
        cluster.submit("--wrap=true")
    assert fake(place, "flaky", "0") == 0
    job = cluster.submit("--output=/dev/null", "--time=60", "-n2", "--wrap=srun sleep 60")
    cluster.wait(job, "RUNNING")
    for words in (["drain", "n2"], ["resume", "n2"], ["fail", "n2"], ["resume", "n2"], ["kill-slurmd", "n2"],
                  ["resume", "n2"], ["preempt", job], ["advance", "3600"], ["slow", "1", "--for", "0.01"],
                  ["unreachable", "0.01"]):  # fmt: skip
        assert fake(place, *words) == 0, words
    cluster.run("scancel", job)
    cluster.wait(job)
    assert fake(place, "kill-rank", job, "0") == 7
    capsys.readouterr()
    assert fake(place, "history") == 0
    told = capsys.readouterr().out
    events = [line.split()[2] for line in told.splitlines() if " state " not in line]
    expected = ["flaky", "flaky", "flaky", "drain", "resume", "fail", "resume", "kill-slurmd", "resume", "preempt"]
    assert events == [*expected, "advance", "slow", "unreachable"]
    assert re.search(rf"state +job={job} state=RUNNING restarts=0 nodes=n1", told)
    monkeypatch.setenv("SLURM_CONF", str(Path(place) / "slurm.conf"))  # a shell that has its commands
    assert main(["fake", "status"]) == 0
    assert "n[1-2]" in capsys.readouterr().out
    assert fake(place, "down") == 0
    assert fake(place, "status") == 7


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--nodes", "0"], "--nodes: 0 is too few"),
        (["--time-scale", "0"], "--time-scale: 0 is out of range"),
        (["--shape", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (["--shape", "nowhere.yaml", "--nodes", "2"], "--nodes: is also in the file of --shape"),
    ],
)
def test_fake_up_refuses_invalid_options_and_makes_no_folder(
    place: str, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fake(place, "up", *words) == 7
    assert text in capsys.readouterr().err
    assert not Path(place).exists()


def test_fake_up_prints_the_missing_lines_of_etc_hosts(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeCluster, "unknown_names", ["n1", "n2"])
    assert fake(place, "up", "--nodes", "2") == 0
    assert capsys.readouterr().out.endswith("add to /etc/hosts:\n127.0.0.1 n1 n2\n")


def test_job_ids_of_simultaneous_fake_clusters_are_at_least_100_apart() -> None:
    """MASTER_PORT follows from the number: two rehearsals side by side waited for each other's ranks."""
    with ThreadPoolExecutor() as pool:
        numbers = sorted(pool.map(lambda _: fresh_job_id(), range(20)))
    assert all(later - earlier >= 100 for earlier, later in itertools.pairwise(numbers))
