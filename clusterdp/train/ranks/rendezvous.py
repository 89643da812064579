"""Rendezvous: the address and port at which the ranks meet, and each rank's numbers, under torch's names.

clusterdp's batch script computes these values and exports them. Without that script (submitit, a plain srun), every
rank derives the same values from Slurm's variables, without communication.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from clusterdp.errors import RendezvousError
from clusterdp.slurm import hostlist
from clusterdp.slurm.env import SlurmEnv

PORT_TAKEN_EXIT = 98  # exit code after which the batch script starts the step once more, with the next port
LOWEST_PORT = 10_000  # the ports below 10,000 belong to registered services that clusters use
EPHEMERAL_FILE = "/proc/sys/net/ipv4/ip_local_port_range"
EPHEMERAL_DEFAULT = (32_768, 60_999)  # Linux's range; the range of macOS, 49152 to 65535, overlaps it

_early: socket.socket | None = None  # of listen_early(), until the store takes it


class PortTaken(RendezvousError):
    """The master port is in use. Raised on rank 0, the only rank that can notice it."""

    exit_code = PORT_TAKEN_EXIT


class GpuMissing(RendezvousError):
    """Slurm gave this rank a GPU, and torch sees none on its node."""


@dataclass(frozen=True)
class Rendezvous:
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    master_addr: str
    master_port: int

    @classmethod
    def find(cls, slurm: SlurmEnv | None = None, environ: Mapping[str, str] = os.environ) -> Rendezvous:
        """Reads the rendezvous from the environment and derives missing values. Raises RendezvousError if the address
        is neither set nor derivable."""
        slurm = slurm or SlurmEnv.read(environ)
        return cls(
            rank=slurm.rank,
            world_size=slurm.world_size,
            local_rank=slurm.local_rank,
            local_world_size=slurm.local_world_size,
            node_rank=slurm.node_rank,
            master_addr=environ.get("MASTER_ADDR") or derive_address(slurm),
            master_port=_port(environ.get("MASTER_PORT")) or derive_port(slurm),
        )

    def environ(self) -> dict[str, str]:
        """The variables for init_process_group("env://"), and for libraries that read them."""
        return {name.upper(): str(value) for name, value in asdict(self).items()}


def listen_early() -> None:
    """Opens the socket of torch's store on rank 0, before anything is loaded. A rank that comes before the store serves
    waits for it in the socket's queue. Without the socket its connection is refused, and torch tries again after 0.3 to
    0.7 s (findings/tcpstore-early-client-waits.sh)."""
    global _early
    with suppress(RendezvousError):  # raised again when the ranks meet
        place = Rendezvous.find()
        _early = listen(place) if place.rank == 0 and place.world_size > 1 else None


def listen(place: Rendezvous) -> socket.socket | None:
    """Returns the socket of torch's store, on rank 0, over IPv4; None under torchrun, if the ranks may use IPv6, or if
    the port is taken."""
    global _early
    early, _early = _early, None
    if early is not None and early.getsockname()[1] == place.master_port:
        return early
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    try:
        if {found[0] for found in socket.getaddrinfo(place.master_addr, None)} != {socket.AF_INET}:
            return None
        return socket.create_server(("", place.master_port), backlog=socket.SOMAXCONN)
    except OSError:
        return None


def derive_address(slurm: SlurmEnv) -> str:
    """Returns the first host if its name resolves here to a non-loopback address, else the address of srun's host.

    Host names often resolve to 127.0.1.1 on the host itself (Debian). Other nodes cannot connect to that address.
    """
    if slurm.one_node:
        return "127.0.0.1"
    if not slurm.nodelist:
        raise RendezvousError(
            f"MASTER_ADDR: not set, and without SLURM_JOB_NODELIST it cannot be derived for {slurm.world_size} ranks. "
            "Export MASTER_ADDR and MASTER_PORT."
        )
    host = hostlist.expand(slurm.nodelist)[0]
    address = _resolve(host)
    if address and not address.startswith("127."):
        return host
    if slurm.launch_address:  # all ranks need the same address, but a name may resolve differently on each node
        return slurm.launch_address
    found = f"resolves to {address} here" if address else "does not resolve here"
    raise RendezvousError(f"MASTER_ADDR: {host} {found}. Export MASTER_ADDR with an address that all nodes can reach.")


def derive_port(slurm: SlurmEnv, ephemeral: tuple[int, int] | None = None) -> int:
    """Returns a port that depends on the job and the restart, outside the range from which the kernel assigns ports.

    Consecutive jobs, which are the most likely to share a node, get consecutive ports. A restart gets a distant port,
    because the server of the start before may still hold its port.
    """
    low, high = ephemeral or ephemeral_range()
    below, above = range(LOWEST_PORT, low), range(high + 1, 65_536)
    ports = max(below, above, key=len)
    if len(ports) < 256:  # if a site gives nearly all ports to the kernel, any port may be used
        ports = range(LOWEST_PORT, 65_536)
    job = int(slurm.job_id) if slurm.job_id and slurm.job_id.isdigit() else os.getuid()
    return ports[(job + 7919 * slurm.restart_count) % len(ports)]


def ephemeral_range() -> tuple[int, int]:
    try:
        low, high = map(int, Path(EPHEMERAL_FILE).read_text().split())
    except (OSError, ValueError):
        return EPHEMERAL_DEFAULT
    return low, high


def _port(text: str | None) -> int:
    if not text:
        return 0
    if not text.isdigit() or not 0 < int(text) < 65_536:
        raise RendezvousError(f"MASTER_PORT: {text!r} is not a port. Set a number from 1 to 65535, or unset it.")
    return int(text)


def _resolve(host: str) -> str | None:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None
