"""Joins the agents: the first rank of each node starts the node's agent, and each rank connects to it.

The ranks find their agent, and the agents their parents, through the job's store, to which anybody on the network can
write. A wrong entry there can keep ranks apart, but cannot make them believe a stranger: an agent accepts only ranks of
its own user and node, and only agents that have the attempt's key. The key is a file in the attempt's folder that only
the job's owner can read. Without a run folder, the key is in the store, and protects as little as torch's own groups.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

import clusterdp
from clusterdp.batch.nodes.agent import SOCKET, WIDTH, Order
from clusterdp.batch.nodes.messages import is_of_this_user
from clusterdp.errors import RendezvousError
from clusterdp.plainfile import open_plain
from clusterdp.train.ranks.rendezvous import Rendezvous

KEY_BYTES = 32
KEY_S = 10.0  # seconds after which a key that rank 0 has written must be there on all nodes
PREFIX = "clusterdp-agent/"
# The variables by which the processes of a job are found. With RANK, the agent would be taken for a rank.
MARKS = ("SLURM_JOB_ID", "SLURMD_NODENAME", "CLUSTERDP_RUN_DIR")
START = "import sys; sys.path.insert(0, sys.argv[1]); from clusterdp.train.hang.node_watch import main; main()"


def connect(store: Store, place: Rendezvous, key_file: Path | None, limit_s: float) -> socket.socket:
    """Returns this rank's connection to its node's agent. Collective. key_file: where rank 0 writes the attempt's key,
    or None. limit_s: seconds in which the agents must find each other.
    Raises RendezvousError if the agent cannot be started or reached, or if the key is missing on this node."""
    node = _node()
    if place.rank == 0:
        store.set(f"{PREFIX}first", node)
        key = _publish_key(store, key_file)
    is_first = store.get(f"{PREFIX}first").decode() == node
    starts = place.rank == 0 if is_first else store.add(f"{PREFIX}{node}/starts", 1) == 1
    number = 0 if is_first else store.add(f"{PREFIX}agents", 1) if starts else -1
    store.add(f"{PREFIX}{node}/ranks", 1)
    if store.add(f"{PREFIX}ranks", 1) == place.world_size:
        store.set(f"{PREFIX}complete", "")
    try:
        if starts:
            listening, address = _listen()
            with listening:
                store.set(f"{PREFIX}{node}", address)
                store.wait([f"{PREFIX}complete"])
                key = key if place.rank == 0 else _key_of_rank_0(store, key_file)
                _start(store, place, node, number, listening, key, limit_s)
        return _connected(store.get(f"{PREFIX}{node}").decode(errors="replace"))
    except (OSError, ValueError, DistError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error).split("\n")[0]
        raise RendezvousError(
            f"rank {place.rank} of {place.world_size}: no agent of {socket.gethostname()}: {said}. See the logs of the "
            "other ranks, and the limits of processes and open files there."
        ) from None


def _start(
    store: Store, place: Rendezvous, node: str, number: int, listening: socket.socket, key: str, limit_s: float
) -> None:
    """Starts the agent. Raises OSError."""
    agents = store.add(f"{PREFIX}agents", 0) + 1
    files, parent = [listening], None
    if number * WIDTH + 1 < agents:
        below, host = _listen_for_agents(place)
        files.append(below)
        store.set(f"{PREFIX}{number}", json.dumps([host, below.getsockname()[1], node.partition(" ")[0], place.rank]))
    if number:
        host, port, above, rank = json.loads(store.get(f"{PREFIX}{(number - 1) // WIDTH}"))
        parent = str(host), int(port), str(above), int(rank)
    path = listening.getsockname()
    order = Order(
        number=number,
        agents=agents,
        ranks=store.add(f"{PREFIX}{node}/ranks", 0),
        rank=place.rank,
        node=node.partition(" ")[0],
        parent=parent,
        key=key,
        limit_s=limit_s,
        ranks_fd=listening.fileno(),
        agents_fd=files[1].fileno() if len(files) > 1 else -1,
        folder=os.path.dirname(path) if isinstance(path, str) else "",
    )
    words = [sys.executable, "-I", "-S", "-c", START, str(Path(clusterdp.__file__).resolve().parents[1])]
    started = subprocess.run(
        words,
        input=json.dumps(order._asdict()).encode(),
        pass_fds=[file.fileno() for file in files],
        env={name: os.environ[name] for name in MARKS if name in os.environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    for file in files:
        file.close()
    if started.returncode:
        raise OSError(started.stderr.decode(errors="replace").strip().rpartition("\n")[2] or "it ended at once")


def _node() -> str:
    """Returns a name that only ranks have in common which can reach one abstract unix socket, and see each other's
    processes. It begins with the node's."""
    names = [os.environ.get("SLURMD_NODENAME") or socket.gethostname()]
    with suppress(OSError):  # macOS
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        names += [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid")]
    return " ".join(names)


def _listen(*, abstract: bool = sys.platform == "linux") -> tuple[socket.socket, str]:
    """Returns the socket to which the node's ranks connect, and its address as text."""
    listening = socket.socket(socket.AF_UNIX)
    if abstract:
        address = f"@clusterdp-{os.urandom(16).hex()}"
    else:
        address = os.path.join(tempfile.mkdtemp(prefix="clusterdp-", dir="/tmp"), SOCKET)  # TMPDIR may be too long
    listening.bind(_address(address))
    listening.listen(socket.SOMAXCONN)
    return listening, address


def _address(text: str) -> str:
    return "\0" + text[1:] if text.startswith("@") else text


def _connected(address: str) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(_address(address))
        if not is_of_this_user(line):
            raise PermissionError("its address belongs to another user's process")
    except OSError:
        line.close()
        raise
    return line


def _listen_for_agents(place: Rendezvous) -> tuple[socket.socket, str]:
    """Returns the socket to which other agents connect, and this host as they know it."""
    family, _, _, _, address = socket.getaddrinfo(place.master_addr, place.master_port, type=socket.SOCK_DGRAM)[0]
    if place.rank == 0:  # the name of this host may be a loopback address here
        return socket.create_server(("", 0), family=family, backlog=WIDTH), place.master_addr
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # with UDP, connect() sends nothing, and only asks the routing table
        own = probe.getsockname()[0]
    return socket.create_server((own, 0), family=family, backlog=WIDTH), own


def _publish_key(store: Store, file: Path | None) -> str:
    """Writes a new key, on rank 0, and what the others need to know it. Returns it as text."""
    key = os.urandom(KEY_BYTES)
    is_written = file is not None and _write_key(file, key)
    store.set(f"{PREFIX}key", f"file {_fingerprint(key)}" if is_written else f"key {key.hex()}")
    return key.hex()


def _key_of_rank_0(store: Store, file: Path | None) -> str:
    """Returns the key of rank 0. A shared file system may show it late."""
    kind, _, said = store.get(f"{PREFIX}key").decode(errors="replace").partition(" ")
    if kind == "key":
        return said
    deadline = time.monotonic() + KEY_S
    while file is None or (key := _read_key_file(file)) is None or _fingerprint(key) != said:
        if file is None or time.monotonic() > deadline:
            raise RendezvousError(
                f"{file}: not the key that rank 0 has written, on {socket.gethostname()}. See whether all nodes share "
                "the run folder."
            )
        time.sleep(0.1)
    return key.hex()


def _fingerprint(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:16]


def _write_key(path: Path, key: bytes) -> bool:
    """Returns False if the disk is full."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(key)
        return True
    except OSError:
        return False


def _read_key_file(path: Path) -> bytes | None:
    """Returns the key; None if there is no complete key."""
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            key = file.read(KEY_BYTES)
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None
