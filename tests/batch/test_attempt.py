"""A node that is silent, or has failed, at the end of an attempt."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterdp.batch.act.failure import last_words
from clusterdp.batch.attempt import ThisAttempt
from clusterdp.batch.decide.attempts import Attempt, _look_back
from clusterdp.batch.decide.decisions import Requeue
from clusterdp.batch.decide.end import Ended
from clusterdp.batch.decide.history import History
from clusterdp.batch.files.job import job_of
from clusterdp.batch.files.rules import Policy, Rules
from clusterdp.batch.nodes.rendezvous import Ports
from clusterdp.batch.processes import slurm
from clusterdp.batch.processes.children import Children
from clusterdp.batch.processes.slurm import Look

RULES = Rules(
    kind="entry", nodes=2, in_place=True, policies={cause: Policy(avoid=True) for cause in ("node-lost", "hung")}
)
RUNNING = Look(slurm.RUNNING)


class Apart(Children):
    """Without signal handlers."""

    def __init__(self) -> None:
        self.environ = {}


@pytest.fixture
def of_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ThisAttempt]:
    """An attempt on n1 and n2 whose step has failed, and with spare nodes from n3 on. Slurm shows all nodes as well."""

    def make(**rules: Any) -> ThisAttempt:
        nodes = 2 + rules.get("spare_nodes", 0)
        names = [f"n{i}" for i in range(1, nodes + 1)]
        environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": f"n[1-{nodes}]", "SLURM_JOB_NUM_NODES": str(nodes)}
        environ["SLURMD_NODENAME"] = "n1"
        found = ThisAttempt(job_of(str(tmp_path), "job.sbatch", environ), RULES._replace(**rules), Apart())
        for folder in (tmp_path / "events", Path(found.job.here)):
            folder.mkdir(parents=True, exist_ok=True)
        found.step.first = "Killed"
        monkeypatch.setattr(found.slurm, "down_nodes", lambda *words: [])
        monkeypatch.setattr(found.slurm, "expand", lambda text: names)
        return found

    return make


@pytest.fixture
def attempt(of_rules: Callable[..., ThisAttempt]) -> ThisAttempt:
    return of_rules()


@pytest.fixture
def with_spare(of_rules: Callable[..., ThisAttempt]) -> ThisAttempt:
    return of_rules(spare_nodes=1)


def blame(attempt: ThisAttempt, monkeypatch: pytest.MonkeyPatch, *nodes: str) -> None:
    monkeypatch.setattr(attempt.keepers, "blamed", lambda record: [*nodes])


def avoided(attempt: ThisAttempt) -> list[str]:
    path = Path(attempt.job.file("avoid"))
    return path.read_text().split() if path.exists() else []


def test_bad_node_without_a_spare_one_forbids_a_restart_in_place(
    attempt: ThisAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt.keepers.silent = ["n2"]
    assert attempt._replaced([], RUNNING) == {}, "it may be a false alarm"
    blame(attempt, monkeypatch, "n2")
    with pytest.raises(LookupError):
        attempt._replaced([], RUNNING)


@pytest.mark.parametrize(("of", "avoids"), [("srun", []), ("Slurm", []), ("beats", ["n2"]), ("NodeList", [])])
def test_bad_node_gives_its_place_to_a_spare_one(
    with_spare: ThisAttempt, monkeypatch: pytest.MonkeyPatch, of: str, avoids: list[str]
) -> None:
    if of == "Slurm":
        monkeypatch.setattr(with_spare.slurm, "down_nodes", lambda *words: ["n2"])
    if of == "beats":
        blame(with_spare, monkeypatch, "n2")
    if of == "NodeList":
        monkeypatch.setattr(
            with_spare.slurm, "expand", lambda text: ["n1", "n3"] if text == "left" else ["n1", "n2", "n3"]
        )
    killed: list[str] = []
    monkeypatch.setattr(with_spare.keepers, "kill", lambda *names: killed.extend(names))
    look = RUNNING._replace(nodes="left")
    assert with_spare._replaced(["n2"] if of == "srun" else [], look) == {"n2": "n3"}
    assert (with_spare.placement.nodes, avoided(with_spare)) == (["n1", "n3"], avoids)
    assert (with_spare.keepers._forgotten, killed) == ({"n2"}, ["7.0", "7.0.1"])


@pytest.mark.parametrize(("lost", "down", "cpus", "gpus"), [(["n2"], [], "4,2", 4), ([], ["n2"], "4(x2),2", 6)])
def test_attempt_after_a_loss_counts_no_processors_of_the_lost_node(
    with_spare: ThisAttempt,
    monkeypatch: pytest.MonkeyPatch,
    lost: list[str],
    down: list[str],
    cpus: str,
    gpus: int,
) -> None:
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "4(x2),2")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    monkeypatch.setattr(with_spare.slurm, "down_nodes", lambda *words: down)  # such as a drained one, which is charged
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(with_spare.record, "event", lambda kind, **details: events.append(details))
    with_spare._record_start("")
    assert with_spare._replaced(lost, RUNNING) == {"n2": "n3"}
    with_spare._record_start("")
    assert [(each["cpus"], each["gpus"]) for each in events] == [("4(x2),2", 6), (cpus, gpus)]


@pytest.fixture
def of_range(of_rules: Callable[..., ThisAttempt], monkeypatch: pytest.MonkeyPatch) -> ThisAttempt:
    """An attempt on n1 and n2 of a job that may have one or two nodes."""
    found = of_rules(sizes=[1, 2], no_kill=True)
    monkeypatch.setattr(found.keepers, "kill", lambda *names: None)
    return found


def test_ranks_of_a_range_leave_their_copy_on_the_disk_for_fewer(
    of_range: ThisAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(of_range.keepers, "kill", lambda *names: done.append("kill"))
    monkeypatch.setattr(of_range.keepers, "forget", lambda *names: done.append("forget"))
    monkeypatch.setattr(of_range.copies, "write", lambda *given: done.append("write"))
    monkeypatch.setattr(of_range.keepers, "drop", lambda: done.append("drop"))
    assert of_range._replaced(["n2"], RUNNING) == {"n2": ""}
    assert done == ["kill", "forget", "write", "drop"], "ranks that are alive may not write, too"
    assert of_range.placement.nodes == ["n1"]


def test_ranks_on_spare_nodes_keep_their_copies_in_memory(
    with_spare: ThisAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(with_spare.copies, "write", pytest.fail)
    monkeypatch.setattr(with_spare.keepers, "drop", pytest.fail)
    assert with_spare._replaced(["n2"], RUNNING) == {"n2": "n3"}


def test_lost_node_of_a_range_allows_a_restart_in_place(of_range: ThisAttempt) -> None:
    assert of_range._may_restart("node-lost", Ended(137, 9), RUNNING, "", ["n2"])
    fixed = of_range.rules._replace(sizes=[])
    of_range.rules = fixed
    assert not of_range._may_restart("node-lost", Ended(137, 9), RUNNING, "", ["n2"])


@pytest.mark.parametrize(("sizes", "about"), [([1, 2], {"size": 1}), ([], {"spare": "n3"})])
def test_restart_records_its_size_or_its_spare_node(
    of_rules: Callable[..., ThisAttempt], sizes: list[int], about: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = of_rules(sizes=sizes, spare_nodes=0 if sizes else 1)
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(attempt.record, "event", lambda kind, **details: events.append(details))
    replaced = {"n2": "" if sizes else "n3"}
    attempt.ending.restart(Requeue("node-lost", "lost n2."), replaced, 1 if sizes else 2)
    assert events == [{"cause": "node-lost", "of": "7.0", **about}]


def test_silent_spare_node_takes_a_place_last(of_rules: Callable[..., ThisAttempt]) -> None:
    attempt = of_rules(spare_nodes=2)
    attempt.keepers.silent = ["n3"]
    assert attempt._replaced(["n2"], RUNNING) == {"n2": "n4"}


def test_restart_on_the_same_nodes_kills_no_rank(with_spare: ThisAttempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_spare.keepers, "kill", pytest.fail)
    with_spare.keepers.silent = ["n2"]
    assert with_spare._replaced([], RUNNING) == {}, "it may be a false alarm"


@pytest.mark.parametrize(
    ("log", "expected"),
    [("RuntimeError: Connection closed by peer [n2]\n", ["n2"]), ("", ["n2"]), ("ValueError: 7\n", [])],
)
@pytest.mark.parametrize("silent_s", [5.0, 20.0])
def test_silent_node_is_lost_though_a_rank_has_an_own_error_later(
    of_rules: Callable[..., ThisAttempt],
    monkeypatch: pytest.MonkeyPatch,
    log: str,
    expected: list[str],
    silent_s: float,
) -> None:
    for spare in (0, 1):
        attempt = of_rules(spare_nodes=spare)
        silent = ["n2", "n3"][: 1 + spare]  # n3 has no ranks
        monkeypatch.setattr(
            attempt.keepers, "settled", lambda _, s, wordless, silent=silent: silent if silent_s > s else []
        )
        agent = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        lost = expected if silent_s < 10 else ["n2"]
        assert attempt._lost("", {"rank-00000.out": log, "node-00000.out": agent}) == lost


def test_ranks_of_the_next_attempt_meet_at_another_port(
    with_spare: ThisAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterdp.batch.attempt.address_of", lambda host, slurm: "127.0.0.1")
    with_spare.ports = Ports(with_spare.job, "n1")
    ports = []
    for _ in range(2):
        with_spare._meet_at_first()
        ports.append(with_spare.ports.next())
    assert (len({*ports}), with_spare.ports.address) == (2, "127.0.0.1")


@pytest.mark.parametrize(("replaced", "writes"), [("n1", False), ("n2", True)])
def test_copies_are_written_if_the_manifest_is_on_this_node(
    with_spare: ThisAttempt, monkeypatch: pytest.MonkeyPatch, replaced: str, writes: bool
) -> None:
    written = []
    monkeypatch.setattr(with_spare.copies, "write", lambda *given: written.append(given))
    with_spare.placement.replace([replaced], ["n1", "n2", "n3"])
    with_spare._leave()
    assert bool(written) is writes


@pytest.mark.parametrize("lost", [[], ["n2"]])
@pytest.mark.parametrize("given_up", [False, True])
def test_copies_are_written_after_srun_gives_up_its_step(
    with_spare: ThisAttempt, monkeypatch: pytest.MonkeyPatch, lost: list[str], given_up: bool
) -> None:
    killed: list[str] = []
    monkeypatch.setattr(with_spare.keepers, "kill", lambda *names: killed.extend(names))
    with_spare.step.lost = lost
    line = "srun: error: Timed out waiting for job step to complete\n" if given_up else ""
    assert with_spare._have_ranks_outlived(line) is bool(lost)
    assert killed == (["7.0", "7.0.1"] if given_up else [])


def test_avoided_node_gives_its_place_at_the_start(with_spare: ThisAttempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_spare.ending, "excluded", lambda: "m1,n2")
    monkeypatch.setattr(with_spare.ending, "requeue", pytest.fail)
    with_spare.ending.history = History(bad=("n2",))
    with_spare._avoid_bad_nodes()
    assert with_spare.placement.nodes == ["n1", "n3"]
    (events,) = Path(with_spare.job.run, "events").iterdir()
    assert '"event":"placed","attempt":"7.0","nodes":"n1,n3"' in events.read_text()


def test_range_of_nodes_starts_without_an_avoided_one(of_range: ThisAttempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_range.ending, "excluded", lambda: "n2")
    monkeypatch.setattr(of_range.ending, "requeue", pytest.fail)
    of_range.ending.history = History(bad=("n2",))
    of_range._avoid_bad_nodes()
    assert of_range.placement.nodes == ["n1"]


def test_nodes_are_asked_for_anew_at_the_end_of_a_long_attempt(
    attempt: ThisAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("clusterdp.batch.act.ending.time.monotonic", lambda: now[0])
    for up, nodes, usable in ((0, ["n1", "n2"], ["n1", "n2"]), (9, [], ["n1", "n2"]), (3600, ["n1"], ["n1"])):
        now[0] += up
        monkeypatch.setattr(attempt.slurm, "usable_nodes", lambda without, nodes=nodes: nodes)
        assert attempt.ending.usable_nodes() == usable


@pytest.mark.parametrize(("spare", "excluded"), [(0, "n2"), (1, "")])
def test_avoided_nodes_leave_enough_for_spare_ones(
    of_rules: Callable[..., ThisAttempt], monkeypatch: pytest.MonkeyPatch, spare: int, excluded: str
) -> None:
    attempt = of_rules(spare_nodes=spare)
    monkeypatch.setattr(attempt.ending, "usable_nodes", lambda: ["n1", "n2", "n3"])
    monkeypatch.setattr(attempt.slurm, "expand", lambda text: [])
    attempt.ending.avoid("node-lost", ["n2"])
    assert attempt.ending.excluded() == excluded


def test_last_words_come_from_the_ranks_alone(attempt: ThisAttempt) -> None:
    logs = Path(attempt.job.logs)
    logs.mkdir()
    for name in ("rank-00000.out", "node-00001.out", "preflight.out", "keepers.log"):
        (logs / name).write_text("MemoryError\n")
    assert last_words(str(logs)).keys() == {"rank-00000.out", "node-00001.out"}


@pytest.mark.parametrize("name", ["rank-00001.out", "node-00001.log", "node-00001.out"])
def test_lost_attempt_ends_with_the_last_write_into_a_log(attempt: ThisAttempt, name: str) -> None:
    logs = Path(attempt.job.logs)
    logs.mkdir()
    for file, when in (("node-00000.log", 4500), (name, 5000), ("keepers.log", 6000)):
        (logs / file).touch()
        os.utime(logs / file, (when, when))
    found = _look_back(Attempt(attempt.job.attempt, ""), attempt.job, attempt.record, 4000)
    assert (found.took, found.over_at) == (1000, 5000)


def test_lost_node_is_enough_evidence_for_a_restart(with_spare: ThisAttempt) -> None:
    with_spare.step.first = ""  # srun was killed, because it waited for the tasks of a silent node
    assert with_spare._may_restart("node-lost", Ended(137, 9), RUNNING, "", ["n2"])
    assert not with_spare._may_restart("crash", Ended(137, 9), RUNNING, "", [])
    assert not with_spare._may_restart("node-lost", Ended(137, 9), Look(slurm.PREEMPTED), "", ["n2"])


@pytest.mark.parametrize("lost", [[], ["n2"]])
def test_ranks_on_a_silent_node_forbid_a_write_of_copies(
    with_spare: ThisAttempt, monkeypatch: pytest.MonkeyPatch, lost: list[str]
) -> None:
    written = []
    monkeypatch.setattr(with_spare.copies, "write", lambda *given: written.append(given))
    monkeypatch.setattr(with_spare.ending, "look", lambda: Look(slurm.ENDING))
    with_spare.step.lost = lost
    with pytest.raises(SystemExit):
        with_spare.finish(1)
    assert bool(written) != bool(lost)


class Srun:
    """A child that does not end."""

    def __init__(self) -> None:
        self.signals: list[str] = []

    def terminate(self) -> None:
        self.signals.append("TERM")

    def kill(self) -> None:
        self.signals.append("KILL")


@pytest.mark.parametrize(
    ("silent", "spare", "limit", "saves", "expected"),
    [
        (["n2"], 1, None, False, ["TERM", "KILL"]),
        (["n3"], 1, None, False, []),  # the spare node itself
        (["n2", "n3"], 1, None, False, []),
        (["n2"], 0, None, False, []),
        (["n2"], 1, 0, False, []),  # the policy allows no other attempt
        (["n2"], 1, None, True, []),
    ],
)
def test_silent_node_ends_the_step_if_a_spare_one_is_there(
    of_rules: Callable[..., ThisAttempt],
    monkeypatch: pytest.MonkeyPatch,
    silent: list[str],
    spare: int,
    limit: int | None,
    saves: bool,
    expected: list[str],
) -> None:
    attempt = of_rules(spare_nodes=spare, policies={"node-lost": Policy(limit=limit)})
    monkeypatch.setattr(attempt.keepers, "lost", lambda: silent)
    monkeypatch.setattr("clusterdp.batch.act.step.SILENT_GRACE_S", 0)
    srun = Srun()
    monkeypatch.setattr(attempt.step, "_may_save", lambda has_term: saves)
    monkeypatch.setattr(attempt.keepers, "is_due", lambda: True)
    monkeypatch.setattr(attempt.keepers, "tend", lambda record: None)
    for _ in range(2):
        attempt.step._tend(srun, attempt.keepers, False)  # type: ignore[arg-type]
    assert srun.signals == expected
    assert attempt.step.lost == (silent if expected else [])


@pytest.mark.parametrize(("sizes", "expected"), [([1, 2], ["n2"]), ([], [])])
def test_silent_node_ends_the_step_if_the_range_allows_fewer(
    of_rules: Callable[..., ThisAttempt], monkeypatch: pytest.MonkeyPatch, sizes: list[int], expected: list[str]
) -> None:
    attempt = of_rules(sizes=sizes, policies={"node-lost": Policy()})
    monkeypatch.setattr(attempt.keepers, "lost", lambda: ["n2"])
    monkeypatch.setattr(attempt.step, "_may_save", lambda has_term: False)
    attempt.step._end_silent(Srun(), attempt.keepers, False)  # type: ignore[arg-type]
    assert attempt.step.lost == expected


def test_silent_nodes_and_those_of_the_hang_are_avoided(attempt: ThisAttempt, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt.ending.avoid("hung", ["n1"])
    blame(attempt, monkeypatch, "n2")
    attempt._leave()
    attempt._leave()
    assert avoided(attempt) == ["n1", "n2"]


def test_silent_nodes_of_a_replaced_attempt_are_not_avoided(
    attempt: ThisAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(attempt.job.file("cause")).write_text("node-lost\n")
    blame(attempt, monkeypatch, "n2")
    attempt._leave()
    assert avoided(attempt) == []


@pytest.mark.parametrize(
    ("failed", "expanded", "expected"),
    [("n2", [], ["n2"]), ("n[2,4]", ["n2", "n4"], ["n2", "n4"]), ("n[2,4]", [], ["n[2,4]"])],
)
def test_node_failure_of_a_no_kill_job_counts_as_node_lost(
    attempt: ThisAttempt, monkeypatch: pytest.MonkeyPatch, failed: str, expanded: list[str], expected: list[str]
) -> None:
    Path(attempt.job.output(attempt.job.log_id)).write_text(f"srun: error: Node failure on {failed}\n")
    requeued: list[str] = []
    monkeypatch.setattr(attempt.ending, "look", lambda: RUNNING)
    monkeypatch.setattr(attempt.slurm, "expand", lambda nodes: expanded)
    monkeypatch.setattr(attempt.ending, "requeue", lambda cause, look: requeued.append(cause) or "")
    monkeypatch.setattr("clusterdp.batch.attempt.LATE_S", (0,))
    with pytest.raises(SystemExit):
        attempt.finish(143)
    assert (requeued, avoided(attempt)) == (["node-lost"], expected)


@pytest.mark.parametrize(
    ("lost", "ended", "begins"),
    [(set(), ("crash",), True), ({"n2"}, (), False), (set(), ("memory", "crash"), False)],
    ids=["usual", "lost", "out-of-memory"],
)
def test_ranks_in_reserve_need_their_nodes_and_memory(
    with_spare: ThisAttempt,
    monkeypatch: pytest.MonkeyPatch,
    lost: set[str],
    ended: tuple[str, ...],
    begins: bool,
) -> None:
    with subprocess.Popen("true") as process:
        process.wait()
    began: list[bool] = []
    children = with_spare.children
    children.terms, children.suspended_s = 0, 0.0
    monkeypatch.setattr(children, "start", lambda *words, **more: process)
    monkeypatch.setattr(with_spare.reserve, "begin", lambda: began.append(True))
    with_spare.placement.lost, with_spare.ending.history = lost, History(ended=ended)
    assert with_spare.step.run(["srun"]) == 0
    assert bool(began) is begins
