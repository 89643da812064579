"""What the ranks of the tests run. Each function is one rank's whole life; it returns what the test looks at."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.state.rank_group import RankGroup
from clusterdp.config.tree import CheckpointConfig, RestartConfig, TrainConfig
from clusterdp.errors import ConfigError, RendezvousError
from clusterdp.train import Group, JobHandle, Meters, Rendezvous, SharedFlags, StopSignal, settle_buckets, worker
from clusterdp.train.hang import hang_watch, page
from clusterdp.train.process.attempt import start_group
from clusterdp.train.ranks import node_agent
from clusterdp.train.ranks.control import leave_now
from clusterdp.train.ranks.shared_flags import Agreed
from clusterdp.train.settings import WorkerSettings


def start(timeout_s: float = 60.0) -> Group:
    return Group.start(Rendezvous.find(), backend="gloo", timeout_s=timeout_s)


def starts_twice() -> list[int]:
    """Sums over the ranks of two groups, one after the other, at one port. A rank that starts the second one earlier
    must not find what the first one has left in the store."""
    sums = []
    for _ in range(2):
        group = start()
        assert not group.store.check(["left"])
        sums.append(int(group.mean(group.rendezvous.rank) * group.rendezvous.world_size))
        group.store.set("left", "")
        group.close()
    return sums


def lazily_connected() -> int:
    """The number of this rank's sockets after agreements in both groups, with a soft limit that rank 0 must raise."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    group = Group.start(Rendezvous.find(), backend="gloo", timeout_s=60.0, lazy=True)
    dist.all_reduce(torch.ones(4))
    assert group.agree(group.rendezvous.rank) == [group.rendezvous.world_size - 1]
    return len(sockets_of("self"))


def one_dies_before_a_barrier(run: str, victim: int) -> None:
    """The time limit of collectives is far beyond the patience of a test."""
    settings = WorkerSettings(run_dir=Path(run), attempt="7.0", train=TrainConfig(backend="gloo", timeout_s=600.0))
    with StopSignal() as stop:
        group, _ = start_group(settings, stop)
        assert group.control is not None
        group.agree(0)
        if dist.get_rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.barrier()
        except RuntimeError as error:
            group.control.fail(str(error))
            leave_now(3)


def signals_at_random(trials: int, seed: int, folder: str = "") -> tuple[list[tuple[Any, ...]], int]:
    """In each trial one rank gets a signal at a random moment. Where did this rank stop, why, after how many exchanges,
    and which step did it commit? And how many exchanges began at most between its own signals and the stops?"""
    group = start()
    checkpointer = Checkpointer(folder, {"numbers": nn.Linear(8, 8)}, group=group.control) if folder else None
    longest = 0
    rank = dist.get_rank()
    chance = random.Random(seed)  # the same on all ranks
    stops: list[tuple[Any, ...]] = []
    for _ in range(trials):
        victim, moment = chance.randrange(dist.get_world_size()), chance.uniform(0, 0.1)
        number = chance.choice([signal.SIGTERM, signal.SIGUSR2])
        pace = random.Random(seed + rank)  # the ranks' steps differ
        with StopSignal() as stop:
            flags = SharedFlags(group.flags_group, stop)
            step = sent = 0
            agreed: Agreed | None = None
            at = time.monotonic() + moment
            while agreed is None or agreed.stop is None:
                time.sleep(pace.uniform(0, 0.004))
                if rank == victim and time.monotonic() >= at:
                    os.kill(os.getpid(), number)
                    at, sent = float("inf"), flags.sent
                step += 1
                agreed = flags.tick()
            flags.drain()
        longest = max(longest, flags.sent - sent if rank == victim else 0)
        committed = checkpointer.save(step).step if checkpointer else step
        stops.append((step, agreed.stop, flags.sent, committed))
    group.close()
    return stops, longest


def uneven_items(counts: list[int], signal_at: int | None = None) -> dict[str, Any]:
    """Rank r has counts[r] items. How many did it get, and how many words did it send?"""
    group = start()
    rank = dist.get_rank()
    with StopSignal() as stop:
        flags = SharedFlags(group.flags_group, stop)
        for _ in range(5):
            flags.tick()
        seen, why = 0, None
        for _item, agreed in flags.iterate(range(counts[rank])):
            if agreed is None:
                seen += 1
                if signal_at == seen and rank == len(counts) - 1:
                    os.kill(os.getpid(), signal.SIGTERM)
            elif agreed.stop:
                why = agreed.stop
                break
        sent_while = flags.sent
        if why is None:
            for _ in range(7):  # training goes on, in step
                flags.tick()
        flags.drain()
        answer = {"seen": seen, "stop": why, "sent": flags.sent, "sent_while": sent_while, "every": flags.every}
    group.close()
    return answer


def flags_and_numbers() -> list[Any]:
    """Each rank sets another flag and another number; all read the same."""
    group = start()
    rank = dist.get_rank()
    flags = SharedFlags(group.flags_group)
    flags.progress = lambda: 10 + rank
    if rank == 2:
        flags.set("save")
    first, second = flags.tick(), flags.tick()
    flags.drain()
    third = None
    while third is None:
        third = flags.tick()
    flags.drain()
    group.close()
    assert second is not None
    return [first, second.flags, second.progress, third["save"]]


def uneven_streams(counts: list[int], sized: bool) -> list[int]:
    """Rank r has a loader of counts[r] batches, with a length or without. What it sees in two epochs."""
    group = start()
    count = counts[dist.get_rank()]
    loader = range(count) if sized else Unsized(count)
    seen = list(JobHandle(WorkerSettings(), group, StopSignal(), "local.1").loop(loader, {}, epochs=2))
    group.close()
    return seen


def shared_samples(samples: int) -> int:
    """Steps in an epoch of so many samples, two a batch."""
    group = start()
    job = JobHandle(WorkerSettings(), group, StopSignal(), "local.1")
    steps = len(list(job.loop(job.loader(TensorDataset(torch.arange(samples)), batch_size=2), {})))
    group.close()
    return steps


class Unsized:
    def __init__(self, count: int):
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


class Tower(nn.Module):
    """Of more than one MB, with parameters used in another order than they are registered."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in (3, 0, 5, 1, 4, 2):
            x = torch.tanh(self.layers[index](x))
        return x


def train_in_two_halves(settled: bool) -> tuple[str, str]:
    """Digests of 4 steps in one go, and of 2 + 2 steps with a new DDP in between."""
    group = start()
    draw = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(8, 256, generator=draw) for _ in range(4)]

    def fresh() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        model = DistributedDataParallel(Tower(), bucket_cap_mb=0.3)
        if settled:
            settle_buckets(model)
        return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, part: list[torch.Tensor]) -> None:
        for x in part:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    whole = fresh()
    steps(*whole, batches)
    first = fresh()
    steps(*first, batches[:2])
    second = fresh()
    second[0].load_state_dict(first[0].state_dict())
    second[1].load_state_dict(first[1].state_dict())
    steps(*second, batches[2:])
    group.close()
    return digest(whole[0]), digest(second[0])


class Learner:
    """An object with a state of its own around a model in DDP."""

    def __init__(self, model: nn.Module):
        self.parts = [model]

    def state_dict(self) -> dict[str, Any]:
        return self.parts[0].module.state_dict()  # type: ignore[operator, union-attr]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts[0].module.load_state_dict(state)  # type: ignore[operator, union-attr]


def wrapped_by_hand(folder: str) -> dict[str, list[str]]:
    """Digests of 4 steps of job.loop in one go, and of 2 + 2 steps, by what the state has of a model in DDP."""
    group = start()
    draw = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(8, 256, generator=draw) for _ in range(4)]
    held = {
        "module": lambda model: model.module,
        "object": Learner,
        "part": lambda model: nn.ModuleList([model.module]),
    }

    def attempt(name: str, what: str, steps: int = 4) -> str:
        saving = CheckpointConfig(url=f"{folder}/{name}-{what}")
        job = JobHandle(replace(WorkerSettings.bare({}), checkpoint=saving), group, StopSignal(), "1.0")
        torch.manual_seed(0)
        model = DistributedDataParallel(Tower(), bucket_cap_mb=0.3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        loop = job.loop(batches, {"model": held[what](model), "optimizer": optimizer})
        for x in loop:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if loop.step + 1 == steps < 4:
                loop.save()
                break
        return digest(model)

    found = {}
    for what in held:
        whole = attempt("whole", what)
        attempt("halves", what, 2)
        found[what] = [whole, attempt("halves", what)]
    group.close()
    return found


def distributed_samples(folder: str, torchdata: bool, steps: int) -> list[int]:
    """The samples of this rank from torch's DistributedSampler, over two epochs, until `steps` are done."""
    group = start()
    saving = CheckpointConfig(url=f"{folder}/checkpoints")
    job = JobHandle(replace(WorkerSettings.bare({}), checkpoint=saving), group, StopSignal(), "1.0")
    kind: Any = StatefulDataLoader if torchdata else DataLoader
    data = range(24)
    loader = kind(data, 2, sampler=DistributedSampler(data))  # type: ignore[arg-type, var-annotated]
    loop = job.loop(loader, {})
    seen: list[int] = []
    for x in loop:
        seen += x.tolist()
        if loop.step + 1 == steps:
            loop.save()
            break
    group.close()
    return seen


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def run_worker(run_dir: str) -> None:
    """As `python -m clusterdp.train.worker RUN_DIR`, but for the loading of torch."""
    sys.exit(worker.main([run_dir]))


def run_worker_on_nodes(run_dir: str) -> None:
    """The same, on nodes of two ranks each, by their names: n1, n2, ..."""
    os.environ["SLURMD_NODENAME"] = f"n{int(os.environ['RANK']) // 2 + 1}"
    run_worker(run_dir)


def meters_over(shares: list[list[float]]) -> dict[str, float]:
    """Rank r has the samples shares[r], in batches of five. On the device as far as there is one, and on the host."""
    group = start()
    meters = Meters(group)
    share = torch.tensor(shares[dist.get_rank()], dtype=torch.float64)
    for batch in share.split(5) if len(share) else ():
        meters.mean(len(batch), mean=batch.mean())
        meters.sum(sum=batch.sum())
        meters.max(max=batch)
        meters.min(min=float(batch.min()))
    if dist.get_rank() == 0:
        meters.sum(plain=11.0)  # not every rank knows every name
    found = meters.reduce()
    group.close()
    return found


def with_job(function: str, params: dict[str, Any], train: dict[str, Any] | None = None) -> Any:
    """What an entry returns, on each rank. train: of the config."""
    from clusterdp.config import from_plain
    from clusterdp.config.tree import TrainConfig
    from clusterdp.train.process import entry

    group = start()
    settings = replace(WorkerSettings.bare(params), train=from_plain(TrainConfig, train or {}))
    with StopSignal() as stop:
        answer = entry.load(function)(JobHandle(settings, group, stop, "1.0"), **params)
    group.close()
    return answer


def objects_over(values: list[Any]) -> Any:
    """Rank r's compute() gives values[r]. What reduce() gives, or what it says."""

    class Gives:
        def compute(self) -> Any:
            mine = values[dist.get_rank()]
            return torch.tensor(mine) if isinstance(mine, list) else mine

        def reset(self) -> None: ...

    group = start()
    meters = Meters(group)
    meters.attach("f1", Gives())
    try:
        return meters.reduce()
    except ConfigError as error:
        return str(error)
    finally:
        group.close()


def in_a_tree(nodes: int, lazy: bool = True, timeout_s: float = 60.0, **options: Any) -> Group:
    """A group whose ranks are on `nodes` nodes of unlike size."""
    go_to_a_node(nodes)
    return Group.start(Rendezvous.find(), backend="gloo", timeout_s=timeout_s, lazy=lazy, **options)


def go_to_a_node(nodes: int) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["SLURM_JOB_ID"] = os.environ["MASTER_PORT"]
    os.environ["SLURMD_NODENAME"] = f"n{min(rank // max(size // nodes, 1), nodes - 1)}"


def agrees_in_a_tree(nodes: int) -> dict[str, Any]:
    """All agreements, and this rank's sockets."""
    group = in_a_tree(nodes)
    rank = group.rendezvous.rank
    answer = {
        "most": group.agree(rank, -rank),
        "least": group.agree(rank, -rank, least=True),
        "gathered": group.gather({"rank": rank, "text": "x" * 50_000 * (rank % 2)}),
        "numbers": group.gather_numbers([rank, 2 * rank]),
        "files": RankGroup(group.control).agree(report=rank, conclude=sum),
        "equal": [RankGroup(group.control).are_equal(bytes([byte] * 8)) for byte in (7, rank)],
        "sockets": len(sockets_of("self")),
    }
    group.close()
    return answer


def agent_of_this_node() -> int:
    """The process id of the agent, which a rank of this node has started."""
    marks = {f"{name}={os.environ[name]}".encode() for name in ("SLURMD_NODENAME", "SLURM_JOB_ID")}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_agent = b"hang.node_watch" in (folder / "cmdline").read_bytes()
            if is_agent and marks <= {*(folder / "environ").read_bytes().split(b"\0")}:
                found.append(int(folder.name))
        except OSError:  # it has ended
            continue
    assert len(found) == 1
    return found[0]


def sockets_of(pid: int | str) -> list[int]:
    """The descriptors of a process that are sockets."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):  # it is closed again
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                found.append(int(name))
    return found


def sent_to_store() -> int:
    """The bytes that this rank, which is not rank 0, has sent to the server of the job's store."""
    sent = 0
    for number in sockets_of("self"):
        with socket.socket(fileno=os.dup(number)) as line, suppress(OSError):
            if line.family != socket.AF_UNIX and line.getpeername()[1] == int(os.environ["MASTER_PORT"]):
                about = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
                sent += struct.unpack_from("Q", about, 120)[0]  # tcpi_bytes_acked
    return sent


def counts_its_costs(nodes: int) -> dict[str, float]:
    """Sockets, CPU seconds and bytes: of the start, of a second at rest, and of an exchange of flags."""
    rest_s, rounds = 4.0, 50
    before = time.process_time()
    group = in_a_tree(nodes, timeout_s=900.0)
    dist.all_reduce(torch.ones(4))
    start_s = time.process_time() - before
    control, each = group.control, int(os.environ["WORLD_SIZE"]) // nodes
    assert control is not None
    is_first = group.rendezvous.rank % each == 0
    agent = agent_of_this_node() if is_first else 0

    def agent_s() -> float:
        return time.clock_gettime(~agent << 3 | 2) if agent else 0.0  # Linux's number of the clock of a process

    start_s += agent_s()
    group.agree(0)
    assert sent_to_store()
    sent, began, began_s = sent_to_store(), time.monotonic(), time.process_time() + agent_s()
    time.sleep(rest_s)
    rest_s = (time.process_time() + agent_s() - began_s) / (time.monotonic() - began)
    sent = sent_to_store() - sent
    group.agree(0)
    began, began_s = time.monotonic(), time.process_time() + agent_s()
    for number in range(rounds):
        assert control.result(control.begin([number] * 10))[0] == number
    took_s = time.process_time() + agent_s() - began_s - rest_s * (time.monotonic() - began)
    found: dict[str, float] = {"sockets": len(sockets_of("self")), "sent": sent}
    found |= {"agent_sockets": len(sockets_of(agent)) if agent else 0}
    found |= {"start_s": start_s, "rest_s": rest_s, "exchange_s": took_s / rounds}
    group.agree(0)
    group.close()
    return found


def hangs_in_a_tree(nodes: int, run_dir: str) -> None:
    """Rank 1 sleeps, and the others wait for it. Each has a flight record, as with NCCL."""
    go_to_a_node(nodes)
    restart = RestartConfig(hang_after_s=1.0, on_hang="restart")
    watch = hang_watch.prepare(Path(run_dir), "7.0", restart, 600.0)
    assert watch is not None
    group = in_a_tree(nodes, watch=watch)
    Path(watch[0].dump_folder).mkdir(exist_ok=True)
    Path(watch[0].dump).write_bytes(b"record")
    for slot, number in enumerate((4, page.BACKWARD, 0, 0)):
        page.current()[slot] = number
    if group.rendezvous.rank == 1:
        time.sleep(600)
    group.agree(1)


def loses(what: str, victim: int) -> list[Any]:
    """Ranks on three nodes lose a rank or an agent. What does an agreement of each of them say?"""
    group = in_a_tree(3, lazy=False, timeout_s=60.0)
    assert group.control is not None
    first = group.gather(os.getpid())[0]
    if group.rendezvous.rank == victim:
        if what == "rank":
            if not os.fork():  # as a worker of a DataLoader, which has the rank's connections, too
                while os.path.exists(f"/proc/{first}"):
                    time.sleep(0.05)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "agent":
            os.kill(agent_of_this_node(), signal.SIGKILL)
        if what == "stopped agent":
            os.kill(agent_of_this_node(), signal.SIGSTOP)
        if what == "error":
            group.control.fail("ValueError: a\nbad\x1b[2J sample")
        if what == "end":
            group.close()
        if what in ("error", "end"):
            return ["", ""]
    began = time.monotonic()
    try:
        group.agree(1)
    except RuntimeError as error:
        return [type(error).__name__, str(error), time.monotonic() - began]
    return ["agreed", ""]


def has_another_key(file: str) -> None:
    """Rank 1 reads a key that rank 0 has not written."""
    if os.environ["RANK"] == "1":
        file = f"{file}-of-another-run"
    os.environ["SLURMD_NODENAME"] = f"n{os.environ['RANK']}"
    node_agent.KEY_S = 0.3
    try:
        Group.start(Rendezvous.find(), backend="gloo", timeout_s=5.0, key_file=Path(file))
    except RendezvousError as error:
        print(error, flush=True)
        os._exit(error.exit_code)
