"""--iterate of squeue and sinfo: the same again every few seconds, until the command is killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterdp.fakeslurm.core.error_texts import Refusal

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.connection import Connection


async def show(client: Connection, options: dict[str, str], once: Callable[[], int]) -> int:
    """Print what `once` prints, with the date before it where that is asked for; its exit status."""
    dated = bool({"iterate", "long"} & options.keys()) and "noheader" not in options
    while True:
        if dated and not {"json", "yaml"} & options.keys():
            client.print(time.strftime("%a %b %d %H:%M:%S %Y"))
        if "iterate" not in options:
            return once()
        try:
            once()
        except Refusal as refusal:
            client.error(refusal.text)
        client.print("")
        await client.flush()
        try:
            await asyncio.wait_for(client.hung_up(), float(options["iterate"]))
            return 0
        except asyncio.TimeoutError:
            pass
