"""Around Slurm's own lines, plugins, proxies and wrappers print any text: it is neither an answer nor a refusal."""

from __future__ import annotations

import io
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from clusterdp.batch.nodes.rendezvous import times_of
from clusterdp.batch.processes import slurm as batch
from clusterdp.batch.processes.children import Answer, Children
from clusterdp.errors import ClusterdpError, SubmitError, SubmitInDoubt
from clusterdp.slurm import commands
from clusterdp.slurm.jobid import Submitted
from tests.batch.values import job

NOISES = {
    "greeting": "Welcome to Aurora! " * 40,
    "spank": "s{name}: error: spank: private-tmp: cannot open /etc/tmp.conf: error",
    "plugin": "slurm_auth_plugin 21.08 loaded",
    "version": "site tools 1.2 (2019), for slurm 19.05",
    "proxy": "proxy: connection reset, timed out after 3 s, trying the next",
    "quoted": "  hint: 'sbatch: error: Batch job submission failed: Invalid qos' means: ask us",
    "forgotten": "What does Invalid job id specified mean? See https://hpc.example/faq",
    "waits": "Is your Job is pending execution? Requested operation is presently disabled at night.",
    "state": "tip: JobState=CANCELLED Restarts=9 NodeList=n9 are fields, see scontrol(1)",
    "nodes": "n7 n8 are down for maintenance",
    "partition": "The partition debug (PartitionName=debug) closes on Friday",
    "table": "+----+\n| a | b | c |\n+----+",
    "german": "Die Übertragung ist fehlgeschlagen: Zeitüberschreitung",
    "chinese": "\u8fde\u63a5\u8d85\u65f6,\u8bf7\u7a0d\u540e\u91cd\u8bd5",
    "colour": "\x1b[31mQuota: 98 % of 1024 GB\x1b[0m",
    "windows": "Hinweis:\r\n17 Tage bis zur Wartung\r",
    "python": "site.py:12: DeprecationWarning: distutils is deprecated\n  import distutils",
    "time": "last login: 12:30:01 from 10.0.0.1",
    "blank": "\n\n\t\n",
    "loader": "ERROR: ld.so: object 'libspy.so' from LD_PRELOAD cannot be preloaded: ignored.",
}
JOB = (
    "JobId=7 JobName=x UserId=u(1) JobState=RUNNING Reason=None Restarts=0 EndTime=2026-01-31T10:00:00 NodeList=n[1-2]"
)
REFUSED = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
LOST = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
Call = Callable[[], Any]
# what is called, and exit code, stdout and stderr of Slurm's command
ANSWERS: dict[str, tuple[Call, int, str, str]] = {
    "submit": (lambda: commands.submit(Path("job.sbatch"), Path()), 0, "7;c2", ""),
    "submit refused": (lambda: commands.submit(Path("job.sbatch"), Path()), 1, "", REFUSED),
    "submit option": (lambda: commands.submit(Path("j"), Path()), 1, "", "sbatch: unrecognized option '--x'"),
    "submit lost": (lambda: commands.submit(Path("job.sbatch"), Path()), 1, "", LOST),
    "submit silent": (lambda: commands.submit(Path("job.sbatch"), Path()), 1, "", ""),
    "job_states": (lambda: commands.job_states(["7", "8"]), 0, "JOBID|STATE|REASON|NODELIST\n7|RUNNING|None|n1", ""),
    "job_states none": (lambda: commands.job_states(["7"]), 1, "", "slurm_load_jobs error: Invalid job id specified"),
    "job_states fails": (lambda: commands.job_states(["7"]), 1, "", "slurm_load_jobs error: Unable to contact"),
    "element_states": (lambda: commands.element_states(["7"]), 0, "JOBID|STATE|REASON|NODELIST\n7_1|PENDING|None|", ""),
    "jobs_of_scripts_in": (
        lambda: commands.jobs_of_scripts_in(Path("/r")),
        0,
        "CLUSTER: c2\nARRAY_JOB_ID|STATE|COMMAND\n7|PENDING|/r/job.sbatch",
        "",
    ),
    "end_time": (lambda: commands.end_time("7"), 0, "UNLIMITED", ""),
    "show_job": (lambda: commands.show_job("7"), 0, JOB, ""),
    "node_groups": (commands.node_groups, 0, "main*|up|idle|2|8|16000|gpu:4|(null)|infinite|1-infinite", ""),
    "show_partitions": (commands.show_partitions, 0, "PartitionName=main State=UP MaxTime=1:00", ""),
    "max_array_size": (commands.max_array_size, 0, "MaxArraySize            = 50", ""),
    "associations": (commands.associations, 0, "nlp||normal|normal|nlp" + "|" * 8, ""),
    "account_limits": (lambda: commands.account_limits("nlp"), 0, "cpu=4|||root", ""),
    "show_qos": (commands.show_qos, 0, "normal" + "|" * len(commands.QOS_FIELDS), ""),
    "ask_test_only": (lambda: commands.ask_test_only("#!", Path()).accepted, 1, "", "allocation failure: Invalid qos"),
    "ask_test_only silent": (lambda: commands.ask_test_only("#!", Path()), 1, "", ""),
    "node_hosts": (lambda: commands.node_hosts("main"), 0, "n1|10.0.0.1\nn2|10.0.0.2", ""),
    "requeue": (lambda: commands.requeue("7"), 1, "", "Job is pending execution for job 7"),
    "requeue fails": (lambda: commands.requeue("7"), 1, "", "Requested operation is presently disabled for job 7"),
    "kill_step": (lambda: commands.kill_step("7"), 0, "7.0 ranks\n7.1 keepers", ""),
    "cancel": (lambda: commands.cancel("7"), 0, "", ""),
}


def result(call: Call) -> object:
    """What a call returns, or the kind of its error, with Slurm's reason."""
    try:
        return call()
    except ClusterdpError as error:
        reasons = (
            "Invalid account",
            "unrecognized option",
            "Socket timed out",
            "Unable to contact",
            "disabled for job",
        )
        return type(error), [reason for reason in reasons if reason in str(error)]


def said_by_slurm(code: int, out: str, err: str, noise: str = "", where: int = 4) -> Callable[..., Any]:
    """subprocess.run() for a command with this answer. where: the place of the noise, of four."""
    texts = [f"{noise}\n{out}", f"{out}\n{noise}", f"{noise}\n{err}", f"{err}\n{noise}"]
    stdout, stderr = texts[where] if where < 2 else out, texts[where] if 1 < where < 4 else err
    return lambda argv, **_: subprocess.CompletedProcess(argv, code, stdout, stderr)


@pytest.mark.parametrize("noise", NOISES)
def test_slurm_commands_give_the_same_answers_amid_noise(monkeypatch: pytest.MonkeyPatch, noise: str) -> None:
    for name, (call, *answer) in ANSWERS.items():
        said = NOISES[noise].replace("{name}", "batch" if "submit" in name or "test_only" in name else "control")
        found = []
        for where in (4, 0, 1, 2, 3):
            monkeypatch.setattr("subprocess.run", said_by_slurm(*answer, said, where))  # type: ignore[call-arg]
            found.append(result(call))
        if name.endswith("silent") and noise == "spank":
            continue  # an error in sbatch's own form
        assert found.count(found[0]) == 5, (name, found)


def test_submit_is_refused_only_by_sbatch_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(code: int, out: str, err: str) -> type:
        monkeypatch.setattr("subprocess.run", said_by_slurm(code, out, err))
        found = result(lambda: commands.submit(Path("job.sbatch"), Path()))
        return found[0] if isinstance(found, tuple) and isinstance(found[0], type) else type(found)

    assert kind(1, "", REFUSED) is SubmitError
    assert kind(1, "", "sbatch: error: spank: broken pipe\n" + REFUSED) is SubmitError
    assert kind(1, "", "wrapper: account missing") is SubmitInDoubt
    assert kind(143, "", REFUSED) is SubmitInDoubt
    assert kind(1, "7", "epilogue of a wrapper failed") is Submitted
    assert kind(1, "7", "sbatch: error: spank: exit hook failed") is SubmitInDoubt
    assert kind(0, "7\n8", "") is SubmitInDoubt


class Noisy:
    """The children of the batch program, whose commands answer amid noise."""

    def __init__(self, said: str, code: int, noise: str, after: bool) -> None:
        self.answer = Answer(code, f"{said}\n{noise}" if after else f"{noise}\n{said}")
        self.environ: dict[bytes, bytes] = {}
        self.own: dict[bytes, bytes] = {}
        self.terms = 0

    def run(self, words: list[str], *_: object, **__: object) -> Answer:
        return self.answer

    def sleep(self, seconds: float) -> bool:
        raise TimeoutError("the controller was asked once more")


SHOWN = JOB.replace(" ", "\n   ")
IN_BATCH: dict[str, tuple[Callable[[batch.Slurm], object], int, str]] = {
    "look": (lambda slurm: slurm.look(), 0, SHOWN),
    "look forgotten": (lambda slurm: slurm.look().state, 1, "slurm_load_jobs error: Invalid job id specified"),
    "look wrapped": (lambda slurm: slurm.look(), 3, SHOWN),
    "glance": (lambda slurm: slurm.glance().state, 0, SHOWN),
    "glance unreadable": (lambda slurm: slurm.glance().state, 0, ""),
    "was_cancelled": (lambda slurm: slurm.was_cancelled("7"), 0, SHOWN),
    "down_nodes": (lambda slurm: slurm.down_nodes("n[1-2]"), 0, "n1|down*\nn2|drained"),
    "expand": (lambda slurm: slurm.expand("n[1-2]"), 0, "clusterdp-first\nn1\nn2\nclusterdp-last"),
    "expand fails": (lambda slurm: slurm.expand("n[1-2"), 1, ""),
    "address": (lambda slurm: slurm.address("n1"), 0, "NodeName=n1 NodeAddr=10.0.0.1 Version=24.11"),
    "submit": (lambda slurm: slurm.submit("/r/job.sbatch", [], {}), 0, "8"),
    "waiting": (lambda slurm: slurm.waiting("/r/job.sbatch"), 0, "8|afterany:7(unfulfilled)|/r/job.sbatch"),
    "times": (lambda slurm: times_of(slurm.job, slurm, "", 1.0), 0, "5:00 10 20"),
    "release": (lambda slurm: batch.steps_share_memory(slurm.children), 0, "slurm-wlm 22.05.8"),
    "old release": (lambda slurm: batch.steps_share_memory(slurm.children), 0, "slurm 21.08.8"),
    "requeued": (lambda slurm: bool(batch.IS_QUICKER.search(slurm.requeue().said)), 1, "Job is pending execution"),
    "forbidden": (
        lambda slurm: bool(batch.IS_FORBIDDEN.search(slurm.requeue().said)),
        1,
        "Requested operation is presently disabled for job 7",
    ),
    "not forbidden": (lambda slurm: bool(batch.IS_FORBIDDEN.search(slurm.requeue().said)), 1, "slurm_requeue error: x"),
}


@pytest.mark.parametrize("noise", NOISES)
def test_batch_program_reads_the_same_answers_amid_noise(noise: str) -> None:
    for name, (call, code, said) in IN_BATCH.items():
        found = [
            call(batch.Slurm(cast(Children, Noisy(said, code, text, after)), job()))
            for text in ("", NOISES[noise].replace("{name}", "control"))
            for after in (False, True)
        ]
        assert found.count(found[0]) == 4, (name, found)


@pytest.mark.parametrize("said", ["", "Welcome to Aurora", "scontrol: error: spank: nope"])
def test_look_at_a_job_asks_again_after_an_unreadable_answer(said: str) -> None:
    with pytest.raises(TimeoutError):
        batch.Slurm(cast(Children, Noisy(said, 0, "", False)), job()).look()


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


def test_slow_command_is_named_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()

    def answer(argv: list[str], **_: object) -> Any:
        assert screen.written.wait(10)
        return subprocess.CompletedProcess(argv, 0, "5:00", "")

    monkeypatch.setattr("subprocess.run", answer)
    monkeypatch.setattr("clusterdp.slurm.commands.SLOW_S", 0.0)
    monkeypatch.setattr("sys.stderr", screen)
    assert commands.end_time("7")
    assert screen.getvalue().startswith("clusterdp: squeue has not answered for 0 s; waiting for 5 s at most.")
