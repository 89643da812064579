from __future__ import annotations

import pytest

from clusterdp.slurm.quantities import clock_of, megabytes_of, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("1:00:00", 3600),
        ("1-12", 129_600),
        ("1-0:30", 88_200),
        ("2-00:00:00", 172_800),
        ("5 sec", 5),
        ("UNLIMITED", None),
        ("infinite", None),
        ("NONE", None),
        ("", None),
    ],
)
def test_seconds_of_reads_slurms_time_formats(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("seconds", [60, 3599, 86_400, 129_630])
def test_clock_of_writes_slurm_times_readable_by_seconds_of(seconds: int) -> None:
    assert seconds_of(clock_of(seconds)) == seconds
    assert clock_of(172_800) == "2-00:00:00" and clock_of(3600) == "1:00:00"


@pytest.mark.parametrize(
    ("text", "megabytes"), [("4000", 4000), ("64G", 65_536), ("62.50G", 64_000), ("1T", 1_048_576), ("UNLIMITED", None)]
)
def test_megabytes_of_reads_slurms_memory_formats(text: str, megabytes: float | None) -> None:
    assert megabytes_of(text) == megabytes
