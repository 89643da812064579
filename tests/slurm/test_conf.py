"""What the configuration of test clusters must keep apart."""

from pathlib import Path

import pytest

from tests.slurm.conf import Shape

PORTS = 22768  # of MASTER_PORT: 10000 to 32767, where ten belong to a job


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_first_job_ids_of_parallel_test_clusters_have_distant_master_ports(nodes: int) -> None:
    first = [Shape(Path(), port, nodes).first_job_id for port in range(20000, 31900, nodes + 2)]
    assert all(40_000 <= number < 90_000 for number in first)
    for distance in range(1, 9):
        apart = [(one - other) * 10 % PORTS for one, other in zip(first, first[distance:], strict=False)]
        assert min(min(ports, PORTS - ports) for ports in apart) >= 100 * 10  # a hundred jobs
