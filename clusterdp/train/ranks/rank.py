"""Rank: this process among its peers: its number, its device, and the flags that it shares with the other ranks."""

from __future__ import annotations

from clusterdp.train.ranks.group import Group
from clusterdp.train.ranks.shared_flags import SharedFlags
from clusterdp.train.ranks.stop import StopSignal


class Rank:
    """This process among its peers. `number` counts from 0. Rank 0 writes the files that only one rank writes.

    device: this rank's device. devices: all devices of this rank, for a model that is split over several.
    """

    def __init__(self, group: Group, stop: StopSignal, seed: int = 0):
        place = group.rendezvous
        self.number = place.rank
        self.world_size = place.world_size
        self.local_rank = place.local_rank
        self.local_world_size = place.local_world_size
        self.node_rank = place.node_rank
        self.device = group.device
        self.devices = group.devices
        self.group = group
        self.stop = stop
        self.flags = SharedFlags(group.flags_group, stop)
        self.seed = seed

    @property
    def is_first(self) -> bool:
        return self.number == 0

    def why_stopped(self, reason: str) -> str:
        """Returns the cause of an agreed stop as text for people. Collective, because any rank may have received the
        request."""
        if reason != "user":
            return self.stop.name_of(reason)
        return str(next(filter(None, self.group.gather(self.stop.why)), "a request"))
