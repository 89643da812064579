"""Group: the process group of a job, this rank's device, and the agreements between the ranks."""

from __future__ import annotations

import json
import math
import os
import resource
import socket
import struct
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from clusterdp.checkpoint.state import rng
from clusterdp.errors import ConfigError, RendezvousError
from clusterdp.slurm.env import SlurmEnv
from clusterdp.train.argument_names import checked
from clusterdp.train.hang import flight_record
from clusterdp.train.output.say import say
from clusterdp.train.ranks import node_agent
from clusterdp.train.ranks.control import Control
from clusterdp.train.ranks.rendezvous import GpuMissing, PortTaken, Rendezvous, listen

# Process groups of closed Groups. If DDP's Reducer is the last owner of a process group, it waits for gloo's threads to
# end while it holds the GIL, and one of these threads may wait for the GIL to free its last work. A model that outlived
# close() hung the rank in one of 15 runs (torch 2.13). This list keeps process groups alive; their sockets and threads
# end with the process.
_outlived: list[dist.ProcessGroup] = []

FREED_S = 0.1  # seconds that a rank waits for gloo's thread at most
MESH_RANKS = 16  # a group of more ranks is connected lazily, if it may be
BY_DEVICE = "cpu:gloo,cuda:nccl"
SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


@dataclass
class Group:
    """The process group of a job and this rank's device."""

    rendezvous: Rendezvous
    devices: list[torch.device]  # this rank's devices, not used by other ranks unless ranks share a GPU
    backend: str
    store: Store
    control: Control | None  # for flags and agreements; None for a single process
    timeout: timedelta
    line: Control | None  # the same as control; of a single process, for the hang watch alone
    started: ClassVar[int] = 0  # groups that this process has started

    @classmethod
    @checked
    def start(
        cls,
        place: Rendezvous,
        *,
        backend: str | None = None,
        timeout_s: float = 1800.0,
        meet_s: float = math.inf,
        lazy: bool = False,
        key_file: Path | None = None,
        watch: tuple[Any, Any] | None = None,
    ) -> Group:
        """Starts the group. Collective. Raises RendezvousError (PortTaken on rank 0) if the ranks cannot meet, or if
        torch sees none of the GPUs that Slurm gave this rank; ConfigError if torch is built for CPUs.

        backend: the name of torch's backend, or one backend for each device type; default: `cpu:gloo,cuda:nccl` if each
        rank has its own GPU, else gloo. meet_s: limit of the seconds of the rendezvous, if it is below timeout_s. lazy:
        whether more than MESH_RANKS ranks connect when they first exchange data, not each with each at the start. If a
        rank dies, one that waits for its connection may do so for five times timeout_s, and must be ended.
        key_file: where rank 0 writes the key of the job's agents, in a folder that all nodes share; without it, the key
        is in the store, which anybody on the network can read. watch: of hang_watch.prepare()."""
        slurm, timeout = SlurmEnv.read(), timedelta(seconds=timeout_s)
        os.environ.update(place.environ())
        _name_interface(place)
        if backend is not None and not all(
            _backend_of(pair) in dist.Backend.backend_list for pair in backend.split(",")
        ):
            raise ConfigError(f"train.backend: {backend!r} is not known to torch. Use nccl, gloo, or leave it out.")
        if slurm.gives_gpus and backend != "gloo" and not torch.cuda.is_available():
            _refuse_cpu(place)
        _choose_mig_slice(place.local_rank)
        devices = own_devices(place, slurm.gpus_per_task)
        if devices[0].type == "cuda":
            torch.cuda.set_device(devices[0])
        limit_s = min(timeout_s, meet_s)
        store = _open_store(place, timedelta(seconds=limit_s))
        line = _meet(store, place, key_file, limit_s, watch)
        control = line if place.world_size > 1 else None
        store.set_timeout(timeout)
        backend = backend or _agree_on_backend(store, place, devices[0])
        if "nccl" in backend:
            flight_record.switch_on(old_names=not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"))
        lazy = lazy and place.world_size > MESH_RANKS
        if lazy:
            os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
        dist.init_process_group(
            backend,
            store=PrefixStore("clusterdp", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
        )
        if control is not None:
            control.timeout_s = timeout_s
        Group.started += 1
        return cls(place, devices, backend, store, control, timeout, line)

    @property
    def device(self) -> torch.device:
        return self.devices[0]

    @property
    def flags_group(self) -> Control | None:
        """The connection for SharedFlags; None for a single process."""
        return self.control

    @property
    def exchange_device(self) -> torch.device:
        """The device of tensors that the process group can exchange: the CPU, unless the backend is nccl alone."""
        return torch.device("cpu") if "gloo" in self.backend else self.device

    def agree(self, *values: int, least: bool = False) -> list[int]:
        """Returns each value's maximum (or minimum) over all ranks. agree() blocks until all ranks call it."""
        if self.control is None:
            return [int(value) for value in values]
        sign = -1 if least else 1
        found = self.control.result(self.control.begin([sign * value for value in values]))
        return [sign * value for value in found]

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's value in rank order, on all ranks. Values must be small and fit into JSON. Blocks."""
        if self.control is None:
            return [value]
        whole = self.control.exchange(json.dumps(value).encode(), lambda parts: b"[" + b",".join(parts) + b"]")
        found: list[Any] = json.loads(whole)
        return found

    def gather_numbers(self, numbers: Sequence[int]) -> list[list[int]] | None:
        """Returns every rank's numbers in rank order, on rank 0; None on the others. All ranks give equally many."""
        if self.control is None:
            return [list(numbers)]
        rows = self.control.gather(array("q", numbers).tobytes())
        return None if rows is None else [array("q", row).tolist() for row in rows]

    def mean(self, value: Any) -> Any:
        """Returns the mean of a number or a tensor over all ranks, with the same bits on each. Blocks."""
        try:
            given = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(
                f"mean: a {type(value).__name__} is not a number or a tensor. Pass one of these."
            ) from None
        total = given.detach().to(self.exchange_device, torch.float64, copy=True)
        dist.all_reduce(total)
        _wait_until_freed(total)
        mean = total / self.rendezvous.world_size
        if not isinstance(value, torch.Tensor):
            return mean.item()
        return mean.to(given.device, given.dtype if given.is_floating_point() else torch.get_default_dtype())

    def close(self) -> None:
        """Closes the group after all ranks have agreed to end. A failed rank must not call close(), which could
        hang."""
        if self.line is not None:
            self.line.close()
        if dist.is_initialized():
            assert dist.group.WORLD is not None
            _outlived.append(dist.group.WORLD)
            dist.destroy_process_group()


def _meet(
    store: Store, place: Rendezvous, key_file: Path | None, limit_s: float, watch: tuple[Any, Any] | None
) -> Control | None:
    """Returns the connection to this node's agent when all ranks have one; None for a single process that nobody
    watches. Raises RendezvousError."""
    is_alone = place.world_size == 1
    if is_alone and watch is None:
        return None
    try:
        connection = node_agent.connect(store, place, None if is_alone else key_file, limit_s)
        control = Control(connection, place.rank, place.world_size, limit_s, watch)
        control.result(control.begin([]))
        return control
    except (RendezvousError, RuntimeError) as error:
        if is_alone:
            say(f"clusterdp: hangs will not be noticed: {error}", error=True)
            return None
        if isinstance(error, RendezvousError):
            raise
        raise RendezvousError(
            f"rank {place.rank} of {place.world_size}: the nodes' agents have not met in {limit_s:.0f} s ({error}). "
            "See the logs of the other ranks, and whether their nodes can connect to each other."
        ) from None


def _wait_until_freed(tensor: torch.Tensor) -> None:
    """Waits until gloo's thread has freed the work of a finished collective on this tensor. It takes the GIL for
    this, and if the interpreter has begun to exit, it aborts the process instead: "terminate called without an active
    exception", in one of 30 runs of a script that ends after its last step (pytorch/pytorch#190489)."""
    deadline = time.monotonic() + FREED_S
    while tensor._use_count() > 1 and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0)  # gives up the GIL


@checked
def seed_everything(seed: int, rank: int, *, deterministic: bool = False) -> None:
    """Seeds this rank's random streams with a seed of the rank's own, because dropout must differ between ranks. All
    ranks still begin with the same weights: DDP copies rank 0's."""
    rng.seed(seed + rank)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without this, cuBLAS refuses to be deterministic
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def own_devices(place: Rendezvous, per_task: int | None = None) -> list[torch.device]:
    """Returns this rank's devices: the GPUs that its task alone sees, its share of the node's, a single GPU that ranks
    share if there are more ranks than GPUs, or the CPU. per_task: the number of GPUs that Slurm gave each rank, or
    None."""
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not seen:
        return [torch.device("cpu")]
    each = per_task or seen // place.local_world_size
    first = place.local_rank * each
    if per_task is not None and seen <= per_task:  # Slurm hides the GPUs of other tasks
        first, each = 0, seen
    elif each == 0 or first + each > seen:
        first, each = place.local_rank % seen, 1
    return [torch.device("cuda", index) for index in range(first, first + each)]


def _choose_mig_slice(local_rank: int) -> None:
    """Makes one of the node's MIG slices visible to this rank. CUDA uses only one slice in a process: without this
    choice, all ranks would use the first slice."""
    slices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if len(slices) > 1 and all(name.startswith("MIG-") for name in slices):
        os.environ["CUDA_VISIBLE_DEVICES"] = slices[local_rank % len(slices)]


def _backend_of(pair: str) -> str:
    """`cuda:nccl` -> `nccl`"""
    return pair.rpartition(":")[2]


def _refuse_cpu(place: Rendezvous) -> NoReturn:
    """Raises the error for a rank that sees none of its GPUs. A rank on its CPU would slow down all ranks, and a whole
    job on CPUs would be slow without any message."""
    gpus = f"rank {place.rank}: Slurm gave it GPUs (SLURM_STEP_GPUS={os.environ.get('SLURM_STEP_GPUS')})"
    if torch.version.cuda is None and torch.version.hip is None:
        raise ConfigError(
            f"{gpus}, and torch {torch.__version__} is built for CPUs. Install a torch for these GPUs. "
            "To train on CPUs, ask for no GPUs (srun --gres=none), or set train.backend: gloo."
        )
    raise GpuMissing(
        f"{gpus}, and torch sees none on {socket.gethostname()}: see `nvidia-smi` there, the driver's version, "
        "CUDA_VISIBLE_DEVICES, and --nv of a container. train.backend: gloo trains on CPUs."
    )


def _allow_open_files(most: int) -> None:
    """Raises the soft limit, which is often 1024 and would end a job of 500 ranks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # the kernel allows fewer
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _open_store(place: Rendezvous, timeout: timedelta) -> Store:
    """Connects to torch's own env:// store, which rank 0 or torchrun's agent serves."""
    if place.world_size == 1:
        alone: Store = HashStore()  # a HashStore needs no port, so that PortTaken cannot occur
        return alone
    if place.rank == 0:
        _allow_open_files(512 + place.world_size)  # each rank is a client of the store
    try:
        store = _serve(place, timeout)
        if store is None:
            store = next(rendezvous("env://", place.rank, place.world_size, timeout=timeout))[0]
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
    # torchrun's store stays when torchrun restarts its workers, and rank 0's as long as its process lives. The prefix
    # hides the values of earlier workers and of this process's earlier groups: gloo would connect to their addresses.
    mine: Store = PrefixStore(f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{Group.started}", store)
    return mine


def _serve(place: Rendezvous, timeout: timedelta) -> Store | None:
    """Serves the store on rank 0 over IPv4; None on the other ranks, under torchrun, or if the ranks may use IPv6.

    Before the store answers a new client, it asks for the name of the client's address. On torch's own socket, which is
    of IPv6, this address is `::ffff:10.0.0.7`: /etc/hosts does not have it, and a name server that answers late delays
    all ranks, one after the other."""
    if place.rank != 0 or (listening := listen(place)) is None:
        return None  # torch shares the store that this process may serve already, or says what is wrong
    return TCPStore(
        place.master_addr,
        place.master_port,
        place.world_size,
        is_master=True,
        timeout=timeout,
        multi_tenant=True,
        master_listen_fd=listening.detach(),
        use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
    )


def _agree_on_backend(store: Store, place: Rendezvous, device: torch.device) -> str:
    """Returns nccl for GPU tensors if each rank has its own GPU, else gloo: NCCL refuses two ranks on one GPU. Rank 0
    decides for all. CPU tensors (offloaded parameters, buffers) travel over gloo in any case.

    A rank without a GPU knows that the answer is gloo, and does not wait. Anybody who can reach the store can also
    write to the store. Therefore any answer other than nccl and gloo is refused and not printed.
    """
    if place.world_size == 1:
        return BY_DEVICE if device.type == "cuda" else "gloo"
    card = _card(device) if device.type == "cuda" else "none"
    store.set(f"card/{place.rank}", card)
    if place.rank == 0:
        others = range(1, place.world_size) if card != "none" else ()
        cards = [card, *(store.get(f"card/{rank}").decode(errors="replace") for rank in others)]
        why = _why_not_nccl(cards)
        if why and card != "none":
            say(f"clusterdp: the ranks exchange gradients over gloo, slower than nccl: {why}.")
        store.set("backend", "gloo" if why else "nccl")
    said = b"gloo" if card == "none" else store.get("backend")
    if said not in (b"gloo", b"nccl"):
        raise RendezvousError("the store of this job: somebody else writes to it. Start again, on nodes of your own.")
    return BY_DEVICE if said == b"nccl" else "gloo"


def _card(device: torch.device) -> str:
    """Returns the names of a GPU, which two ranks must not share: its UUID, and its host with its place on the bus. The
    MIG slices of a GPU have different UUIDs, but NCCL treats the slices as one GPU."""
    about = torch.cuda.get_device_properties(device)
    bus = [getattr(about, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    place = about.uuid if None in bus else f"{socket.gethostname()}/{':'.join(map(str, bus))}"
    return f"{about.uuid} {place}".replace("\n", "")


def _why_not_nccl(cards: Sequence[str]) -> str:
    """Returns the reason why NCCL cannot be used; an empty text if it can. cards: _card() of each rank's GPU, or
    `none`."""
    if "none" in cards:
        return f"rank {cards.index('none')} sees no GPU"
    owners: dict[str, int] = {}
    for rank, card in enumerate(cards):
        for name in card.split(" "):
            if (first := owners.setdefault(name, rank)) != rank:
                return f"ranks {first} and {rank} share one GPU"
    return "" if dist.is_nccl_available() else "this torch has no nccl"


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
        own = "127.0.0.1"  # gloo falls back to the loopback address, too
    if own.startswith("127.") and (name := _interface_towards(place.master_addr, place.master_port)):
        os.environ["GLOO_SOCKET_IFNAME"] = name


def _interface_towards(host: str, port: int) -> str | None:
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # with UDP, connect() sends nothing, and only asks the routing table
            address = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name[:15].encode())
                try:
                    answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                except OSError:
                    continue  # this interface has no IPv4 address
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    except (OSError, ImportError):
        pass
    return None
