"""Whether a program trains, and whether anything in it tells one rank from another."""

from __future__ import annotations

import re

from clusterdp.check.program.program_text import Place, ProgramText
from clusterdp.check.program.sources import Sources

TRAINS = re.compile(r"\.backward\(")
KNOWS_RANKS = re.compile(
    r"init_process_group|init_device_mesh|init_distributed|DistributedDataParallel|DistributedSampler|fully_shard"
    r"|\b(?:GLOBAL_|LOCAL_|NODE_|GROUP_)?RANK\b|WORLD_SIZE|SLURM_(?:PROCID|LOCALID|NODEID|NTASKS)|local_?rank|get_rank"
    r"|PMI_RANK|PMIX_RANK|OMPI_COMM|TORCHELASTIC",
    re.IGNORECASE,
)


def add_rank_facts(text: ProgramText, sources: Sources) -> None:
    for source in sources.each:
        for number, line in enumerate(source.lines, 1):
            place = Place(source.file, number, line.strip())
            if TRAINS.search(line):
                text.trains.append(place)
            if KNOWS_RANKS.search(line):
                text.knows_ranks.append(place)
