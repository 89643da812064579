"""Group: the process group of a job, this rank's device, and a gloo group for agreements between the ranks."""

from __future__ import annotations

import json
import os
import socket
import struct
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from clusterdp.checkpoint.state import rng
from clusterdp.errors import ConfigError, RendezvousError
from clusterdp.train.ranks.rendezvous import PortTaken, Rendezvous

# Process groups of closed Groups. If DDP's Reducer is the last owner of a process group, it waits for gloo's threads to
# end while it holds the GIL, and one of these threads may wait for the GIL to free its last work. A model that outlived
# close() hung the rank in one of 15 runs (torch 2.13). This list stays an owner; sockets and threads end with us.
_outlived: list[dist.ProcessGroup] = []

SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


@dataclass
class Group:
    """The process group of a job and this rank's device."""

    rendezvous: Rendezvous
    device: torch.device
    backend: str
    store: Store
    control: dist.ProcessGroup  # gloo, for flags and agreements, never for gradients
    timeout: timedelta

    @classmethod
    def start(cls, place: Rendezvous, *, backend: str | None = None, timeout_s: float = 1800.0) -> Group:
        """Starts the group. Collective. Raises RendezvousError (PortTaken on rank 0) if the ranks cannot meet."""
        timeout = timedelta(seconds=timeout_s)
        os.environ.update(place.environ())
        _name_interface(place)
        device = _own_device(place.local_rank)
        store = _open_store(place, timeout)
        backend = backend or _agree_on_backend(store, place, device)
        if backend not in dist.Backend.backend_list:
            raise ConfigError(f"train.backend: {backend!r} is not known to torch. Use nccl, gloo, or leave it out.")
        dist.init_process_group(
            backend,
            store=PrefixStore("clusterdp", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
        )
        control = dist.new_group(backend="gloo", timeout=timeout)
        return cls(place, device, backend, store, control, timeout)

    @property
    def flags_group(self) -> dist.ProcessGroup | None:
        """The group for SharedFlags; None for a single process."""
        return self.control if self.rendezvous.world_size > 1 else None

    def agree(self, *values: int, least: bool = False) -> list[int]:
        """Returns each value's maximum (or minimum) over all ranks. Blocks: use it where all ranks meet anyway."""
        vector = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(vector, op=dist.ReduceOp.MIN if least else dist.ReduceOp.MAX, group=self.control)
        return [int(value) for value in vector.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's value in rank order, on all ranks. Values must be small and fit into JSON. Blocks."""
        if self.rendezvous.world_size == 1:
            return [value]
        data = json.dumps(value).encode()
        padded = torch.full((self.agree(len(data))[0],), ord(" "), dtype=torch.uint8)
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        slots = [torch.empty_like(padded) for _ in range(self.rendezvous.world_size)]
        dist.all_gather(slots, padded, group=self.control)
        return [json.loads(bytes(slot.tolist())) for slot in slots]

    def close(self) -> None:
        """Closes the group after all ranks have agreed to end. A failed rank must not call close(): it could hang."""
        if dist.is_initialized():
            assert dist.group.WORLD is not None
            _outlived.extend((dist.group.WORLD, self.control))
            dist.destroy_process_group()


def seed_everything(seed: int, rank: int, *, deterministic: bool = False) -> None:
    """Seeds this rank's own random streams (dropout must differ). DDP gives all ranks rank 0's initial weights."""
    rng.seed(seed + rank)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without this, cuBLAS refuses to be deterministic
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def _own_device(local_rank: int) -> torch.device:
    """Returns GPU LOCAL_RANK modulo the number of visible GPUs: `--gpus-per-task` shows each task one GPU, called 0."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def own_devices(group: Group) -> list[torch.device]:
    """Returns this rank's devices: the GPUs of its task alone (`gpus_per_task`), or its share of the node's GPUs."""
    if group.device.type != "cuda":
        return [group.device]
    seen, place = torch.cuda.device_count(), group.rendezvous
    if os.environ.get("SLURM_GPUS_PER_TASK"):
        return [torch.device("cuda", index) for index in range(seen)]
    each = seen // place.local_world_size
    return [torch.device("cuda", place.local_rank * each + i) for i in range(each)] or [group.device]


def _open_store(place: Rendezvous, timeout: timedelta) -> Store:
    """Opens torch's own env:// store, which rank 0 or torchrun's agent serves."""
    if place.world_size == 1:
        alone: Store = HashStore()  # needs no port, so PortTaken cannot occur
        return alone
    try:
        store: Store = next(rendezvous("env://", place.rank, place.world_size, timeout=timeout))[0]
    except (dist.DistError, ValueError) as error:
        said = str(error).split("\n")[0]
        where = f"{place.master_addr}:{place.master_port}"
        if "EADDRINUSE" in said:
            raise PortTaken(
                f"MASTER_PORT: {place.master_port} on {socket.gethostname()}: address already in use. "
                "Start the ranks again with another port."  # the batch script searches for `address already in use`
            ) from None
        raise RendezvousError(
            f"rank {place.rank} of {place.world_size}: no rendezvous at {where} within {timeout.total_seconds():.0f} s "
            f"({said}). See the logs of the other ranks, and whether {place.master_addr} can be reached from here."
        ) from None
    # torchrun's store outlives a restart of the workers in place. The prefix hides the values of earlier workers.
    mine: Store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    return mine


def _agree_on_backend(store: Store, place: Rendezvous, device: torch.device) -> str:
    """Returns nccl if each rank has its own GPU, else gloo: NCCL refuses two ranks on one GPU. Rank 0 decides for all.

    A rank without a GPU knows the answer and does not wait. Anybody who can reach the store can also write to it.
    Therefore any answer other than these two words is refused and not printed.
    """
    if place.world_size == 1:
        return "nccl" if device.type == "cuda" else "gloo"
    card = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else "none"
    store.set(f"card/{place.rank}", card)
    if place.rank == 0:
        others = range(1, place.world_size) if card != "none" else ()
        cards = [card, *(store.get(f"card/{rank}").decode(errors="replace") for rank in others)]
        own = "none" not in cards and len(set(cards)) == len(cards) and dist.is_nccl_available()
        store.set("backend", "nccl" if own else "gloo")
    said = b"gloo" if card == "none" else store.get("backend")
    if said not in (b"gloo", b"nccl"):
        raise RendezvousError("the store of this job: somebody else writes to it. Start again, on nodes of your own.")
    return str(said.decode())


def _name_interface(place: Rendezvous) -> None:
    """Sets gloo's network interface to the one that leads to the other nodes, unless the batch script has set it.

    Gloo listens on the address of the host's own name. On Debian this address is 127.0.1.1: the other nodes cannot
    connect, and gloo hangs although NCCL works.
    """
    if place.local_world_size >= place.world_size or os.environ.get("GLOO_SOCKET_IFNAME"):
        return
    try:
        own = socket.gethostbyname(socket.gethostname())
    except OSError:
        own = "127.0.0.1"  # gloo falls back to the loopback, too
    if own.startswith("127.") and (name := _interface_towards(place.master_addr, place.master_port)):
        os.environ["GLOO_SOCKET_IFNAME"] = name


def _interface_towards(host: str, port: int) -> str | None:
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # UDP: sends nothing, only asks the routing table
            address = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name[:15].encode())
                try:
                    answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                except OSError:
                    continue  # an interface without an IPv4 address
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    except (OSError, ImportError):
        pass
    return None
