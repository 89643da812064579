"""What slurmctld and the daemon of a step send each other arrives as it was sent."""

import signal

import pytest

from clusterdp.fakeslurm.core import orders, reports
from clusterdp.fakeslurm.core.task_usage import Usage

USED = Usage(1.5, 0.5, 2048, 1, "n2", 1024, 0.5, 0, "n1", 1.0)
SENDER = reports.Sender(job=10001, step="batch", restart=2, pid=77)
SENT = [
    reports.Started((70, 71)),
    reports.Reconnected((71,)),
    reports.Ended(9),
    reports.Ended(256, {10001: 0, 10002: 256}, {10001: USED, 10002: None}, 1000, True, True, True, True),
    reports.ScriptGone(),
    reports.Acknowledged("10001.0.5"),
]
ORDERS = [
    orders.Terminate((signal.SIGKILL,), kill_after=None, why=None),
    orders.Terminate((signal.SIGCONT, signal.SIGTERM), 5.0, "DUE TO TIME LIMIT", True, 1000, True),
    orders.Warn((signal.SIGCONT, signal.SIGTERM)),
    orders.Signal(signal.SIGUSR1),
    orders.SignalScript(signal.SIGUSR1),
    orders.FailNode("n1"),
    orders.KillRank(3),
    orders.OutliveSrun(),
    orders.Say("srun: error: Node failure on n1"),
    orders.Received(0.5),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_order_is_equal_after_encoding_and_decoding(order: orders.Order) -> None:
    assert orders.decode(orders.encode(order, "ack")) == (order, "ack")


@pytest.mark.parametrize("report", SENT, ids=lambda report: type(report).__name__)
def test_report_is_equal_after_encoding_and_decoding(report: reports.Report) -> None:
    assert reports.decode(reports.encode(SENDER, report)) == (SENDER, report)


def test_encoding_tests_cover_every_type_of_order_and_report() -> None:
    assert {type(order) for order in ORDERS} == set(orders.TYPES.values())
    assert {type(report) for report in SENT} == set(reports.TYPES.values())


def test_unknown_order_or_report_is_an_error_with_its_name() -> None:
    with pytest.raises(ValueError, match="order 'Dance': unknown"):
        orders.decode(b'{"order": "Dance", "ack": ""}')
    with pytest.raises(ValueError, match="report 'Sing': unknown"):
        reports.decode(b'{"sender": {"job": 1, "step": "0", "restart": 0, "pid": 7}, "report": "Sing"}')
