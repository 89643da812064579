"""The keepers' step: when it starts, which nodes are silent, and the script that a job has lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterdp.batch.files.job import Job, job_of
from clusterdp.batch.files.record import Record
from clusterdp.batch.files.rules import Rules
from clusterdp.batch.nodes import keeper, keepers
from clusterdp.batch.nodes.copies import Copies
from clusterdp.batch.nodes.keepers import Keepers
from clusterdp.batch.processes.children import Answer, Children
from clusterdp.storage import MemoryStorage
from tests.keepers import Node
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfds are Linux's")
COPIES = Rules(kind="entry", copies=True)


class Apart(Children):
    """Without signal handlers."""

    def __init__(self) -> None:
        self.environ, self.private = {}, []


@pytest.fixture
def job(tmp_path: Path) -> Job:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3"}
    found = job_of(str(tmp_path), "job.sbatch", {**environ, "SLURMD_NODENAME": "n1"})
    for folder in (tmp_path / "events", Path(found.logs)):
        folder.mkdir(parents=True)
    return found


def test_keepers_wait_for_the_ranks_and_for_claims(job: Job, tmp_path: Path) -> None:
    alone = job._replace(node_count=1)
    started = Keepers(alone, COPIES, Apart())
    assert not started.is_due()
    started.begin()
    assert not started.is_due(), "a program that fails at once needs none"
    started._at = 0.0
    assert started.is_due()
    own = Keepers(alone._replace(run=str(tmp_path / "elsewhere")), COPIES._replace(kind="command"), Apart())
    own._at = 0.0
    assert not own.is_due(), "a program that does not use clusterdp"
    (tmp_path / "elsewhere/claims").mkdir(parents=True)
    assert own.is_due()


def test_keepers_of_several_nodes_start_without_copies(job: Job) -> None:
    many, alone = Keepers(job, Rules(), Apart()), Keepers(job._replace(node_count=1), Rules(), Apart())
    for each in (many, alone):
        each.begin()
    assert (many._at < float("inf"), alone._at < float("inf")) == (True, False)
    off = Copies(job, Rules(), Apart(), many)
    off.export("checkpoints")
    assert off.children.environ == {}


@pytest.mark.parametrize(
    ("said", "starts"),
    [
        ("slurm 20.11.7", False),
        ("slurm 21.08.8-2", False),
        ("", False),
        ("slurm 22.05.8", True),
        ("slurm 26.05.1", True),
    ],
)
def test_keepers_start_from_slurm_22_05_on(job: Job, monkeypatch: pytest.MonkeyPatch, said: str, starts: bool) -> None:
    (words, environ) = started(job, COPIES, monkeypatch, said) or ([], {})
    assert bool(words) is starts
    assert sorted(environ) == ([b"CLUSTERDP_MEMORY", b"PATH", b"SLURM_JOB_ID"] if starts else [])


def test_keepers_of_a_no_kill_job_know_the_rescue_and_the_chain(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    chained = job._replace(chain="5", replaces="6", replaced_log="6")
    found = started(chained, COPIES._replace(no_kill=True), monkeypatch, "slurm 24.11.5")
    assert found
    words, environ = found
    assert {"--no-kill", "--kill-on-bad-exit=0", "--wait=0"} <= set(words)
    given = words[words.index(f"{job.run}/checkpoints") + 1 :]
    assert given[:2] == ["7", "3"]
    assert given[-4:] == ["rescue", job.run, "--script=job.sbatch", "--lost=n1"]
    again = job_of(job.run, "job.sbatch", {os.fsdecode(k): os.fsdecode(v) for k, v in environ.items()} | NODES)
    assert (again.chain, again.replaces, again.replaced_log) == ("5", "6", "6")


NODES = {"SLURM_JOB_NODELIST": "n[1-3]"}


def started(
    job: Job, rules: Rules, monkeypatch: pytest.MonkeyPatch, said: str
) -> tuple[list[str], dict[bytes, bytes]] | None:
    """The words and the environment of the keepers' srun, if it has started."""
    found = Keepers(job, rules, Apart())
    found.children.environ = {b"PATH": os.environb[b"PATH"], b"SLURM_NTASKS_PER_NODE": b"8", b"SLURM_JOB_ID": b"7"}
    monkeypatch.setattr(found.children, "run", lambda words: Answer(0, said))
    calls = []

    def start(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        calls.append((words, options["env"]))
        return subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    double = SimpleNamespace(Popen=start, PIPE=None, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("clusterdp.batch.nodes.keepers.subprocess", double)
    found._at = 0.0
    found.tend(Record(job))
    if found._step is not None:
        found.close()
        found._step.__exit__(None, None, None)
    return calls[0] if calls else None


class Beats(Keepers):
    """Keepers with a clock of the test's own, whose beats the test makes up."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, COPIES, Apart())
        self.now = 100.0
        self.coming: list[str] = []
        self._looked = self.now

    def _read(self) -> list[str]:
        return self.coming

    def look(self, *nodes: str, after_s: float = 0.5) -> list[str]:
        self.now += after_s
        self.coming = [*nodes]
        self._look(Record(self.job))
        return self.silent


@pytest.fixture
def beats(job: Job, monkeypatch: pytest.MonkeyPatch) -> Beats:
    found = Beats(job)
    monkeypatch.setattr(keepers.time, "monotonic", lambda: found.now)
    return found


def events(job: Job) -> list[tuple[str, str]]:
    path = Path(job.run, "events", f"{job.attempt}-batch.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(line["event"], line["nodes"]) for line in lines]


def test_silent_node_is_named_within_5_s_and_when_it_returns(
    beats: Beats, job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(4):
        assert beats.look("n1", "n2", "n3") == []
    last = beats.now
    while not beats.look("n1", "n3"):
        assert beats.now - last < 5
    assert (beats.silent, events(job)) == (["n2"], [("silent", "n2")])
    beats.look("n1", "n3")
    assert beats.look("n1", "n2", "n3") == []
    assert events(job)[1:] == [("silent-ended", "n2")]
    said = capfd.readouterr().err
    assert said.count("no sign of life from n2: down, cut off") == 1
    assert "alive again: n2." in said


def test_silence_of_all_nodes_at_once_names_none(beats: Beats) -> None:
    beats.look("n1", "n2", "n3")
    assert [beats.look() for _ in range(100)] == [[]] * 100


def test_time_without_looks_makes_no_node_silent(beats: Beats) -> None:
    beats.look("n1", "n2", "n3")
    assert beats.look("n1", after_s=600) == [], "the job was suspended, or this program asked a dead controller"
    for _ in range(7):
        assert beats.look("n1") == []
    assert beats.look("n1") == ["n2", "n3"]
    assert beats.look("n1", after_s=600) == ["n2", "n3"], "a silent node stays so until it beats"


def test_node_without_a_first_beat_is_not_silent(beats: Beats) -> None:
    assert [beats.look("n1") for _ in range(20)] == [[]] * 20


def test_next_attempt_names_a_silent_node_again(beats: Beats, job: Job) -> None:
    beats.look("n1", "n2", "n3")
    for _ in range(9):
        beats.look("n1", "n3")
    beats.begin()
    beats.look("n1", "n3")
    assert events(job) == [("silent", "n2")] * 2


def test_keepers_of_a_no_kill_job_start_once(job: Job, tmp_path: Path) -> None:
    rules = COPIES._replace(no_kill=True)
    for given, starts in ((COPIES, True), (rules, False)):
        found = Keepers(job, given, Apart())
        with subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as step:
            found.attach(step)
            step.wait()
            found._heard = {"n1": 1.0}
            found.begin()
        assert (found._at < float("inf")) is starts, "those of before may live, and have the address"


def test_keepers_without_a_beat_start_again_on_the_nodes_left(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Keepers(job, COPIES._replace(no_kill=True), Apart())
    with subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as step:
        found.attach(step)
        step.wait()
        found.forget(["n2"], ["n1", "n3"])
        found.begin()
    assert found._at < float("inf"), "srun was refused, because a node was lost before"
    assert "--nodes=2" in found._words()


def test_node_of_an_ended_keeper_is_not_silent(beats: Beats, job: Job) -> None:
    beats.look("n1", "n2", "n3", "n4")
    (Path(job.logs) / "keepers.log").write_text("srun: error: n3: task 2: Killed\n")
    for _ in range(9):
        beats.look("n1", "n4")
    assert beats.silent == ["n2"]


def test_node_of_an_earlier_ended_keeper_is_silent_in_the_next_step(
    beats: Beats, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(job.logs) / "keepers.log").write_text("srun: error: n2: task 1: Killed\n")
    monkeypatch.setattr(beats.children, "run", lambda words: Answer(0, ""))
    beats._start()
    beats.look("n1", "n2", "n3")
    for _ in range(9):
        beats.look("n1", "n3")
    assert beats.silent == ["n2"]


def test_silent_node_may_beat_after_a_pause_before_it_is_blamed(beats: Beats) -> None:
    beats.look("n1", "n2", "n3")
    for _ in range(8):
        beats.look("n1", "n3")
    assert beats.look("n1", "n3", after_s=600) == ["n2"], "the job was suspended"
    assert beats.lost() == []
    for _ in range(14):
        beats.look("n1", "n3")
    assert beats.lost() == ["n2"]


def test_blamed_nodes_are_a_minority_and_silent_for_longer(beats: Beats, job: Job) -> None:
    beats.look("n1", "n2", "n3")
    while beats.now < 100.5 + keepers.BLAMED_S:
        beats.look("n1", "n3")
        assert beats.blamed(Record(job)) == []
    beats.look("n1", "n3", after_s=1.0)
    assert beats.blamed(Record(job)) == ["n2"]
    for _ in range(40):
        beats.look("n1")
    assert (beats.silent, beats.blamed(Record(job))) == (["n2", "n3"], []), "n1 may be cut off"


def test_forgotten_node_is_not_silent(beats: Beats, job: Job) -> None:
    beats.look("n1", "n2", "n3")
    beats.forget(["n2"], ["n1", "n3"])
    assert [beats.look("n1", "n3") for _ in range(9)] == [[]] * 9
    beats.look("n1", "n2", "n3")
    assert [beats.look("n1", "n3") for _ in range(9)] == [[]] * 9
    assert events(job) == []


def test_warning_names_a_few_of_many_silent_nodes(beats: Beats, capfd: pytest.CaptureFixture[str]) -> None:
    names = [f"m{i}" for i in range(9)]
    beats.look("n1", *names)
    for _ in range(9):
        beats.look("n1")
    assert "no sign of life from m0 m1 m2 m3 m4 and 4 more: down" in capfd.readouterr().err


def test_order_expects_no_answer_of_a_silent_node(job: Job, tmp_path: Path) -> None:
    with attached(job, tmp_path) as (found, _):
        found._heard, found.silent = {"n1": 1.0, "n2": 1.0}, ["n2"]
        answers = found.order("write step_1 x", time.monotonic() + 10, lambda: False)
        assert answers == ["wrote n1 0"]


def test_end_of_keepers_takes_no_time_if_their_output_is_not_read(job: Job, tmp_path: Path) -> None:
    words = "import os; os.set_blocking(1, False); os.write(1, b'beat n1\\n' * 8192); os.set_blocking(1, True); "
    words += "os.read(0, 9); os.write(1, b'beat n1\\n' * 8192)"
    found, pipe = Keepers(job, COPIES, Apart()), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", words], stdin=pipe, stdout=pipe) as step:
        found.attach(step)
        began = time.monotonic()
        found.close()
        assert (step.returncode, time.monotonic() - began < keepers.END_S) == (0, True)


@contextmanager
def attached(job: Job, tmp_path: Path) -> Iterator[tuple[Keepers, Node]]:
    node = Node(uuid.uuid4().hex, "n1", tmp_path / "checkpoints")
    try:
        found = Keepers(job, COPIES, Apart())
        found.key = node.key
        found.attach(node.process)
        yield found, node
    finally:
        node.end()


def test_keeper_beats_and_ends_by_a_word(job: Job, tmp_path: Path) -> None:
    with attached(job, tmp_path) as (found, node):
        wait_for("a beat", lambda: found._look(Record(job)) or "n1" in found._heard, 10, every_s=0.05)
        found.close()
        assert node.process.returncode == 0


def test_keeper_kills_the_ranks_of_an_attempt_on_its_node(job: Job, tmp_path: Path) -> None:
    def program(name: str, attempt: str, node: str) -> subprocess.Popen[bytes]:
        about = {name: "1", "CLUSTERDP_ATTEMPT": attempt, "SLURMD_NODENAME": node}
        return subprocess.Popen(["sleep", "60"], env={**os.environ, **about})

    name = f"{uuid.uuid4().hex}.0"
    killed = [program(each, name, "n1") for each in ("RANK", "PET_NODE_RANK")]
    spared = [program("RANK", name, "n2"), program("RANK", name + ".1", "n1"), program("X", name, "n1")]
    try:
        with attached(job, tmp_path) as (found, _):
            found.kill(name, name + ".1")
            assert [each.wait(10) for each in killed] == [-9, -9]
            assert [each.poll() for each in spared] == [None] * 3
    finally:
        for each in killed + spared:
            each.kill()
            each.wait()


def test_keeper_drops_all_files_on_an_order(job: Job, tmp_path: Path) -> None:
    with attached(job, tmp_path) as (found, node):
        memory = MemoryStorage(node.key, "n1")
        for name in ("step_00000001/a", f"{keeper.HELD}/step_00000001/b"):
            memory.write(name, [memoryview(b"x")])
        found.drop()
        wait_for("an empty memory", lambda: memory.names() == [], 10)


def test_keeper_kills_ranks_in_reserve() -> None:
    name = uuid.uuid4().hex
    about = {"CLUSTERDP_ATTEMPT": f"{name}.1", "SLURMD_NODENAME": "n1", "RANK": "0"}
    waiting = subprocess.Popen(["sleep", "60"], env={**os.environ, **about, "CLUSTERDP_RESERVE": "1"})
    rank = subprocess.Popen(["sleep", "60"], env={**os.environ, **about})
    try:
        keeper.kill_ranks(name, f"{name}.1", "n1")
        assert waiting.wait(10) == -9
        assert rank.poll() is None, "the next attempt after a loss starts without them"
    finally:
        for each in (waiting, rank):
            each.kill()
            each.wait()


def test_silence_is_settled_after_a_beat_of_each_node(job: Job, tmp_path: Path) -> None:
    with attached(job, tmp_path) as (found, _):
        found._heard = {"n1": 0.0}
        assert found.settled(Record(job), keepers.SILENT_S) == []
        assert found._heard["n1"] > 0
        found._heard["n2"] = found._heard["n1"] - keepers.SILENT_S + 1.5
        assert found.settled(Record(job), keepers.SILENT_S) == ["n2"]
        found._heard.update(dict.fromkeys(["n3", "n4"], 0.0))
        assert found.settled(Record(job), keepers.SILENT_S) == [], "this node may be cut off"


@pytest.mark.parametrize(
    ("wordless", "mute", "lost", "seconds"),
    [
        (["n2"], ["n2"], ["n2"], keepers.ANSWER_S),
        (["n2", "n3"], ["n2"], ["n2"], keepers.ANSWER_S),
        ([], ["n2"], ["n2"], keepers.SILENT_S),
        (["n2"], ["n2", "n3"], ["n2", "n3"], keepers.SILENT_S),
        (["n2"], [], [], 0),
    ],
    ids=["wordless", "one of two", "with a word", "not alone", "answers"],
)
def test_wordless_node_must_answer_sooner(
    beats: Beats,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    wordless: list[str],
    mute: list[str],
    lost: list[str],
    seconds: float,
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(Beats, "are_alive", True)
    monkeypatch.setattr(beats, "_send", lambda line: not sent.append(line))
    nodes = ["n1", "n2", "n3", "n4"]
    beats.look(*nodes)
    began, beats.coming = beats.now, []

    def pause(pause_s: float) -> None:
        beats.now += pause_s
        beats.coming = [node for node in nodes if node not in mute]

    monkeypatch.setattr(keepers.time, "sleep", pause)
    assert beats.settled(Record(job), keepers.SILENT_S, wordless) == lost
    assert seconds <= beats.now - began <= seconds + 0.3
    assert (sent, beats.silent) == (["beat"], lost)


def test_wordless_node_has_longer_if_the_keepers_take_no_orders(
    beats: Beats, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Beats, "are_alive", True)
    monkeypatch.setattr(beats, "_send", lambda line: False)
    beats.look("n1", "n2", "n3")
    began, beats.coming = beats.now, []

    def pause(pause_s: float) -> None:
        beats.now += pause_s
        beats.coming = ["n1", "n3", *(["n2"] if beats.now > began + 1.3 else [])]  # a late beat

    monkeypatch.setattr(keepers.time, "sleep", pause)
    assert beats.settled(Record(job), keepers.SILENT_S, ["n2"]) == []


def test_keeper_beats_on_an_order(job: Job, tmp_path: Path) -> None:
    with attached(job, tmp_path) as (found, node):
        found._send("beat\n" * 50 + "end")
        node.process.wait(10)
        assert found._read().count("n1") >= 50


def test_term_ends_a_keeper_without_ranks(job: Job, tmp_path: Path) -> None:
    with attached(job, tmp_path) as (_, node):
        node.process.terminate()
        assert node.process.wait(10) == 0, "Slurm would wait KillWait for it"


def test_term_leaves_a_keeper_its_copies(job: Job, tmp_path: Path) -> None:
    with attached(job, tmp_path) as (found, node):
        MemoryStorage(node.key, "n1").write("step_1/x", [memoryview(b"1")])
        node.process.terminate()
        wait_for("two beats", lambda: len(found._read()) > 1, 10, every_s=2.5)
        assert node.process.poll() is None


RUNNING, SUSPENDED, ENDING = "JobState=RUNNING", "JobState=SUSPENDED", "JobState=COMPLETING"


@pytest.mark.parametrize(
    ("said", "is_over", "rescues"),
    [
        (f"{RUNNING}\n NumNodes=3", False, False),
        (f"{RUNNING}\n NumNodes=2", False, True),
        (f"{SUSPENDED}\n NumNodes=2", False, False),
        (f"{ENDING}\n NumNodes=2", True, False),
        (f"{ENDING}\n NumNodes=3", False, False),
        (f"{RUNNING}\n NumNodes=2 Restarts=0", False, True),
        ("JobState=PENDING\n NumNodes=3 Restarts=1", True, False),
        ("slurm_load_jobs error", False, False),
    ],
)
def test_lookout_runs_the_rescue_if_a_running_job_has_lost_nodes(
    slurm: Slurm, said: str, is_over: bool, rescues: bool
) -> None:
    (slurm.folder / "job").write_text(said)
    lookout = slurm.lookout()
    slurm.now += keeper.LOOK_S - 0.1
    assert (lookout.is_over(), lookout._asked) == (False, None)
    slurm.now += 0.2
    assert (slurm.ended(lookout), lookout._rescues is not None) == (is_over, rescues)
    if lookout._rescues is not None:
        lookout._rescues.wait()


def test_lookout_without_a_script_is_over_with_the_job(slurm: Slurm) -> None:
    (slurm.folder / "job").write_text(f"{ENDING} NumNodes=3")
    lookout = slurm.lookout()
    lookout.hurry()
    slurm.now += 1
    assert not slurm.ended(lookout), "the script writes the copy of the state"
    lookout.miss_script()
    slurm.now += 1
    assert slurm.ended(lookout), "Slurm would wait KillWait for it"


def test_end_of_stdin_leaves_the_lookout_of_a_no_kill_job(tmp_path: Path) -> None:
    node = Node(uuid.uuid4().hex, "n1", tmp_path, "7", "3", "true", SLURM_PROCID="1")
    try:
        assert node.process.stdin is not None and node.process.stdout is not None
        node.process.stdin.close()
        assert [node.process.stdout.readline() for _ in range(3)] == [b"beat n1\n"] * 3
        assert node.process.poll() is None
    finally:
        node.end()


def test_term_makes_a_keeper_with_copies_look_at_its_job(slurm: Slurm, tmp_path: Path) -> None:
    (slurm.folder / "job").write_text(f"{ENDING} NumNodes=2")
    path = os.environ["PATH"]
    node = Node(uuid.uuid4().hex, "n1", tmp_path, "7", "3", "true", SLURM_PROCID="9", PATH=path)
    try:
        MemoryStorage(node.key, "n1").write("step_1/x", [memoryview(b"1")])
        node.process.terminate()
        assert node.process.wait(20) == 0, "its turn comes after 45 s"
    finally:
        node.end()


@pytest.mark.parametrize("code", [0, 1])
def test_lookout_is_over_if_the_rescue_has_worked(slurm: Slurm, code: int) -> None:
    (slurm.folder / "job").write_text(f"{RUNNING} NumNodes=2")
    lookout = slurm.lookout(rescue=["bash", "-c", f"exit {code}"])
    slurm.now += keeper.LOOK_S
    assert not slurm.ended(lookout)
    assert lookout._rescues is not None
    lookout._rescues.wait()
    assert (lookout.is_over(), lookout._rescues) == (code == 0, None)  # type: ignore[comparison-overlap]
    slurm.now += 2 * keeper.LOOK_S
    assert not lookout.is_over()
    assert lookout._asked is not None, "it looks again"
    lookout._asked.communicate()


def test_lookout_leaves_a_job_with_its_script_until_the_next_loss(slurm: Slurm) -> None:
    lookout = slurm.lookout(rescue=["bash", "-c", f"exit {keeper.NEEDLESS}"])

    def rescues(nodes: int) -> bool:
        (slurm.folder / "job").write_text(f"{RUNNING} NumNodes={nodes}")
        slurm.now += 2 * keeper.LOOK_S
        assert not slurm.ended(lookout)
        if lookout._rescues is None:
            return False
        lookout._rescues.wait()
        assert not lookout.is_over()
        return True

    assert [rescues(2), rescues(2), rescues(1), rescues(1)] == [True, False, True, False]
    lookout.miss_script()
    assert rescues(1)


def test_lookout_remembers_a_loss_of_nodes(slurm: Slurm) -> None:
    (slurm.folder / "job").write_text(f"{RUNNING} NumNodes=2")
    lookout = slurm.lookout(rescue=["false"])
    slurm.now += keeper.LOOK_S
    assert not slurm.ended(lookout)
    assert lookout._rescues is not None
    lookout._rescues.wait()
    assert not lookout.is_over()
    (slurm.folder / "job").write_text(f"{ENDING} NumNodes=3")
    slurm.now += 2 * keeper.LOOK_S
    assert slurm.ended(lookout), "a requeued job has its first number of nodes"


def test_keepers_look_at_the_job_in_turn(slurm: Slurm) -> None:
    lookouts = [slurm.lookout(task) for task in (1, 2)]
    first, second = lookouts
    assert (first._at, second._at) == (100 + keeper.LOOK_S, 100 + 2 * keeper.LOOK_S)
    slurm.now = first._at
    assert not first.is_over()
    assert first._at == 100 + 3 * keeper.LOOK_S, "as soon as the other has looked"
    second.hurry()
    assert second._at == slurm.now + 2 * keeper.HURRY_S, "not all at once"
    assert first._asked is not None
    first._asked.communicate()


class Slurm:
    """A scontrol that prints the file `job`, and the time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder, self.now = folder, 100.0
        (folder / "scontrol").write_text(f'#!/bin/bash\n[ "$*" = "show job 7" ] && cat {folder}/job\n')
        (folder / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setattr("clusterdp.batch.nodes.keeper.time", SimpleNamespace(monotonic=lambda: self.now))

    def lookout(self, task: int = 1, rescue: list[str] | None = None) -> keeper.Lookout:
        return keeper.Lookout("7", 3, rescue or ["true"], task)

    def ended(self, lookout: keeper.Lookout) -> bool:
        """Whether the keeper ends, when scontrol has answered."""
        assert not lookout.is_over()
        assert lookout._asked is not None
        lookout._asked.wait()
        return lookout.is_over()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(tmp_path, monkeypatch)
