"""What sbatch refuses at once, and what waits for ever: as a real Slurm of this shape said."""

import shlex

import pytest

from tests.fakeslurm.conftest import Desk

TOO_FEW_CPUS = "sbatch: error: CPU count per node can not be satisfied\n"
REFUSED = "sbatch: error: Batch job submission failed: Requested node configuration is not available\n"

# On 4 nodes of 8 CPUs. More than all of the partition is taken, and waits; less, but on too few nodes, is refused.
REFUSALS = {
    "-c 9": TOO_FEW_CPUS + REFUSED,
    "-N1 -c 9": TOO_FEW_CPUS + REFUSED,
    "-N2 -c 9": TOO_FEW_CPUS + REFUSED,
    "-n3 -c 9": TOO_FEW_CPUS + REFUSED,
    "-c 32": TOO_FEW_CPUS + REFUSED,
    "-N3 -n3 -c 10": TOO_FEW_CPUS + REFUSED,
    "-N1 --ntasks-per-node=9": TOO_FEW_CPUS + REFUSED,
    "-N1 --mincpus=9": TOO_FEW_CPUS + REFUSED,
    "-N1 -n9": REFUSED,
    "-N2 -n17": REFUSED,
    "--gpus-per-node=3": REFUSED,
}
WAITS = {  # reason, CPUs, nodes, as squeue shows them
    "-N4 -c 9": "PartitionConfig 36 4",
    "-N4 --ntasks-per-node=1 -c 9": "PartitionConfig 36 4",
    "-n4 -c 9": "PartitionConfig 36 4",
    "-n4 -c 16": "PartitionConfig 64 4",
    "-n5 -c 8": "PartitionConfig 40 5",
    "-n33": "PartitionConfig 33 5",
    "-c 33": "PartitionConfig 33 1",
    "-N4 --ntasks-per-node=9": "PartitionConfig 36 4",
    "-N4 -n 40": "PartitionConfig 40 5",
    "-N5": "PartitionNodeLimit 5 5",
    "-N6-8": "PartitionNodeLimit 1 6",
}


@pytest.mark.parametrize("options", REFUSALS)
def test_job_too_large_for_its_nodes_is_refused(shared_desk: Desk, options: str) -> None:
    done = shared_desk.run("sbatch", *shlex.split(options), "--wrap=true")
    assert (done.returncode, done.stderr) == (1, REFUSALS[options])


@pytest.mark.parametrize("options", WAITS)
def test_job_too_large_for_the_partition_is_refused(shared_desk: Desk, options: str) -> None:
    done = shared_desk.run("sbatch", *shlex.split(options), "--wrap=true")
    assert done.returncode == 1
    assert done.stderr.endswith(REFUSED)


@pytest.mark.parametrize("options", WAITS)
def test_job_too_large_for_the_partition_stays_pending_on_slurm_22_05(desk_22_05: Desk, options: str) -> None:
    job = desk_22_05.submit(*shlex.split(options), script="true")
    line = f"squeue -h -j {job} -t PENDING -o '%r %C %D'"
    desk_22_05.until(lambda: not desk_22_05.say(line).startswith("None "), "a reason")
    assert desk_22_05.say(line) == WAITS[options]
    desk_22_05.say(f"scancel {job}")
