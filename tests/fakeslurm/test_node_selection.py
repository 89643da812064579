"""Which nodes a job gets, and how many tasks and CPUs on each, as real Slurms of 4 nodes with 8 CPUs and 2 GPUs did."""

import pytest

from clusterdp.fakeslurm.commands.options.getopt import GetoptParser
from clusterdp.fakeslurm.commands.options.job_desc_of_options import job_desc
from clusterdp.fakeslurm.commands.options.options import SBATCH
from clusterdp.fakeslurm.commands.options.parsed_options import ParsedOptions
from clusterdp.fakeslurm.core.model import Model, Share
from clusterdp.fakeslurm.core.release import Release
from clusterdp.fakeslurm.core.shape import Shape
from clusterdp.fakeslurm.slurmctld.node_selection import all_free, place

# sbatch's options: tasks and CPUs of each node
RECORDED_24_11 = """
    --gpus=8 --ntasks=8: 2/2 2/2 2/2 2/2
    --gpus=8 --ntasks=16: 4/4 4/4 4/4 4/4
    --gpus=8 --ntasks=4: 1/1 1/1 1/1 1/1
    --gpus=3 --ntasks=8: 7/7 1/1
    --gpus=4 --ntasks=8: 4/4 4/4
    --gpus=6 --ntasks=3: 1/1 1/1 1/1
    --gpus=2 --ntasks=6: 6/6
    --gpus=8 --ntasks=8 --nodes=4: 2/2 2/2 2/2 2/2
    --gpus-per-node=2 --ntasks=8 --nodes=4: 5/5 1/1 1/1 1/1
    --ntasks=8 --nodes=4: 5/5 1/1 1/1 1/1
    --ntasks=9 --nodes=3: 7/7 1/1 1/1
    --cpus-per-task=3 --ntasks=4: 2/6 2/6
    --cpus-per-task=3 --ntasks=5: 2/6 2/6 1/3
    --cpus-per-task=5 --ntasks=3: 1/5 1/5 1/5
    --cpus-per-task=3 --ntasks=5 --nodes=3: 2/6 2/6 1/3
    --cpus-per-task=3 --ntasks=3 --nodes=3: 1/3 1/3 1/3
    --cpus-per-task=2 --ntasks=5 --nodes=2: 4/8 1/2
    --ntasks-per-node=3 --ntasks=7: 3/3 2/2 2/2
    --ntasks-per-node=4 --ntasks=6 --nodes=2: 3/3 3/3
    --ntasks-per-node=3 --nodes=2-3: 3/3 3/3 3/3
    --ntasks-per-node=2 --ntasks=3 --cpus-per-task=2: 2/4 1/2
    --nodelist=n3,n4 --nodes=1: 1/1
"""
RECORDED_22_05 = """
    --gpus=8 --ntasks=8: 5/5 1/1 1/1 1/1
    --ntasks-per-node=3 --ntasks=7: 3/3 3/3 3/3
    --ntasks-per-node=3 --nodes=2 --ntasks=2: 3/3 3/3
"""
RECORDED_26_05 = """
    --ntasks-per-node=4 --ntasks=6 --nodes=2: 4/4 4/4
    --ntasks-per-node=2 --ntasks=3 --cpus-per-task=2: 2/4 2/4
    --gpus=3 --ntasks=8: 7/7 1/1
    --cpus-per-task=3 --ntasks=5 --nodes=3: 2/6 2/6 1/3
    --spread-job --nodes=2 --ntasks=4: 2/2 2/2
    --ntasks-per-node=3 --ntasks=7: 3/3 3/3 3/3
    --cpus-per-task=3 --ntasks=4: 2/6 2/6
    --gpus=8 --ntasks=8: 2/2 2/2 2/2 2/2
"""
CASES = [
    pytest.param(release, *line.strip().split(": "), id=f"{release}{line.split(': ')[0].strip()}")
    for release, lines in (("24.11", RECORDED_24_11), ("22.05", RECORDED_22_05), ("26.05", RECORDED_26_05))
    for line in lines.strip().splitlines()
]


# sbatch's options: GPUs of each node, where this many are busy on some
GPUS_RECORDED = """
    --gpus=2 -N2: n1=1 n2=1
    --gpus=3 -N3: n1=1 n2=1 n3=1
    --gpus=4 -N3: n1=2 n2=1 n3=1
    --gpus=6 -N4: n1=2 n2=2 n3=1 n4=1
    --gpus=3: n1=2 n2=1
    --gpus=4 -N2-4: n1=2 n2=2
    --gpus=2 -N2 -n4: n1=1 n2=1
    --gpus=4 with n1: n2=2 n3=2
    --gpus=3 -N2 with n1: n2=2 n3=1
    --gpus=5 -N4 with n1: n1=1 n2=2 n3=1 n4=1
    --gpus=5 with n1,n3: n1=1 n2=2 n4=2
    --gpus-per-node=1 -N2 with n1: n1=1 n2=1
"""


@pytest.mark.parametrize("line", GPUS_RECORDED.strip().splitlines())
@pytest.mark.parametrize("release", ["22.05", "24.11"])
def test_gpus_of_a_job_are_placed_on_nodes_like_in_slurm(release: str, line: str) -> None:
    asked, expected = line.strip().split(": ")
    options, _, busy = asked.partition(" with ")
    model, rules = Model.of(Shape.simple(), 0), Release(release)
    free = all_free(model)
    for name in busy.split(",") if busy else ():
        free[name] = free[name].less(Share(name, 1, 1, [0], [7]))
    parsed = ParsedOptions("sbatch", rules)
    parsed.add(GetoptParser("sbatch", SBATCH).parse(options.split(), permute=False)[0])
    shares = place(job_desc(parsed, "/", "main", print, 0, rules), list(free.values()), rules)
    assert shares
    assert " ".join(f"{share.node}={len(share.gpus)}" for share in shares) == expected


@pytest.mark.parametrize(("release", "options", "expected"), CASES)
def test_tasks_and_cpus_of_a_job_are_placed_like_in_slurm(release: str, options: str, expected: str) -> None:
    model, rules = Model.of(Shape.simple(), 0), Release(release)
    parsed = ParsedOptions("sbatch", rules)
    parsed.add(GetoptParser("sbatch", SBATCH).parse(options.split(), permute=False)[0])
    shares = place(job_desc(parsed, "/", "main", print, 0, rules), list(all_free(model).values()), rules)
    assert shares
    assert " ".join(f"{share.tasks}/{share.cpus}" for share in shares) == expected
