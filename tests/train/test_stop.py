"""Stop signals: one that is lost costs the work since the last checkpoint; one that kills a worker, the whole job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from clusterdp.train.ranks.stop import Stopped, StopSignal


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "term"), (signal.SIGUSR2, "time")])
def test_stop_signal_maps_sigterm_and_sigusr2_to_their_stop_reasons(number: signal.Signals, reason: str) -> None:
    with StopSignal() as stop:
        assert stop.reason() is None
        os.kill(os.getpid(), number)
        assert stop.reason() == reason
        assert stop.name_of(reason) == number.name


def test_stop_signal_restores_earlier_signal_handlers() -> None:
    def theirs(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGUSR2, theirs)
    try:
        with StopSignal():
            assert signal.getsignal(signal.SIGUSR2) is not theirs
        assert signal.getsignal(signal.SIGUSR2) is theirs
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_time_limit_causes_a_stop_early_enough_for_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("clusterdp.train.ranks.stop.time", SimpleNamespace(time=lambda: now))
    stop = StopSignal(end_time=2000.0, margin_s=60.0)
    stop.needed_s = 15.0  # less than the margin
    now = 1939.0
    assert stop.reason() is None
    stop.needed_s = 75.0
    now = 1924.0
    assert stop.reason() is None
    now = 1926.0
    assert stop.reason() == "time"
    assert stop.name_of("time") == "end of time"


@pytest.mark.parametrize(
    ("answers", "asked", "stops_at"),
    [([2600.0], 2, 2540.0), ([2000.4, 9999.0], 1, 1940.0), ([None], 1, 1940.0), ([2600.0, 3200.0], 3, 3140.0)],
)
def test_stop_signal_asks_for_a_raised_time_limit_before_stopping(
    monkeypatch: pytest.MonkeyPatch, answers: list[float | None], asked: int, stops_at: float
) -> None:
    now = 1000.0
    monkeypatch.setattr("clusterdp.train.ranks.stop.time", SimpleNamespace(time=lambda: now))
    stop = StopSignal(end_time=2000.0, margin_s=60.0)
    times: list[float] = []

    def ask() -> float | None:
        times.append(now)
        return answers[len(times) - 1] if len(times) <= len(answers) else answers[-1]

    stop.ask_end = ask
    while stop.reason() is None:
        now += 10
    assert (now, len(times)) == (stops_at, asked)
    now += 10
    assert (stop.reason(), len(times)) == ("time", asked)


def test_stop_margin_longer_than_the_job_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterdp.train.ranks.stop.time", SimpleNamespace(time=lambda: 1000.0))
    assert StopSignal(end_time=1060.0, margin_s=300.0).lead_s == 15.0


def test_shielded_child_processes_ignore_the_signals_of_a_preemption() -> None:
    with StopSignal() as stop:
        with stop.shielded():
            child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=-1, stdout=-1)
        assert child.stdout is not None
        child.stdout.readline()
        for number in (signal.SIGTERM, signal.SIGUSR2):
            child.send_signal(number)
        _, _ = child.communicate(b"\n", timeout=30)
        assert child.returncode == 0


def test_signal_received_while_shielded_is_not_lost() -> None:
    with StopSignal() as stop:
        with stop.shielded():
            os.kill(os.getpid(), signal.SIGTERM)
        while stop.reason() is None:  # a thread that an earlier test left may be the one that takes it
            time.sleep(0.001)
        assert stop.reason() == "term"


def test_process_exits_although_shielded_workers_still_run() -> None:
    """multiprocessing sends them TERM and waits for them; they do not hear it."""
    program = (
        "import multiprocessing, time\n"
        "from clusterdp.train.ranks.stop import StopSignal\n"
        "def work(): time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    with StopSignal().shielded():\n"
        "        multiprocessing.get_context('fork').Process(target=work, daemon=True).start()\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert time.monotonic() - began < 60


def test_stopped_exception_is_not_caught_by_except_exception() -> None:
    def user_code() -> None:
        try:
            raise Stopped("term", 7)
        except Exception:
            pytest.fail("caught")

    with pytest.raises(Stopped, match=r"stopped at step 7 \(term\)"):
        user_code()


def test_worker_and_attempt_modules_do_not_import_torch() -> None:
    program = (
        "import sys; import clusterdp.train.worker, clusterdp.train.process.attempt; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
