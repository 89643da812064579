"""The time of an exchange of flags in a job that is too large for any machine of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets, and clocks of processes")


@pytest.mark.parametrize("nodes", [9, pytest.param(64, marks=pytest.mark.slow)])
def test_flags_of_8192_ranks_take_10_ms_at_200_us_a_hop(nodes: int) -> None:
    command = [sys.executable, "-m", "tests.scale.simulation", str(nodes)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = json.loads(subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True, timeout=60).stdout)
    assert 0.7 < found["real_s"] / found["check_s"] < 1.5, found  # other tests take the processors
    assert found["large_s"]["0.0002"] <= 0.010, found
