"""Rank: this process among its peers: its number and device, and how it agrees with the others."""

from __future__ import annotations

from clusterdp.train.ranks.group import Group, own_devices
from clusterdp.train.ranks.shared_flags import SharedFlags
from clusterdp.train.ranks.stop import StopSignal


class Rank:
    """This process among its peers. `number` counts from 0, and rank 0 writes what is written once.

    device: of this rank. devices: all of its devices, for a model that is split over them.
    """

    def __init__(self, group: Group, stop: StopSignal, seed: int = 0):
        place = group.rendezvous
        self.number = place.rank
        self.world_size = place.world_size
        self.local_rank = place.local_rank
        self.local_world_size = place.local_world_size
        self.node_rank = place.node_rank
        self.device = group.device
        self.devices = own_devices(group)
        self.group = group
        self.stop = stop
        self.flags = SharedFlags(group.flags_group, stop)
        self.seed = seed

    @property
    def is_first(self) -> bool:
        return self.number == 0

    def why_stopped(self, reason: str) -> str:
        """The cause of an agreed stop, for people to read. Collective: a request may have been made on any rank."""
        if reason != "user":
            return self.stop.name_of(reason)
        return str(next(filter(None, self.group.gather(self.stop.why)), "a request"))
