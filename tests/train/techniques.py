"""Small trainings for ranks, one technique each. A function is one rank's life and returns what a test compares."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.state.stateful import unwrap
from clusterdp.config import from_plain
from clusterdp.config.tree import TrainConfig
from clusterdp.errors import ClusterdpError
from clusterdp.train import (
    Amp,
    Ema,
    Group,
    JobHandle,
    ModelParallel,
    NanGuard,
    Rendezvous,
    StopSignal,
    gradient_sync,
    in_parts,
    warmup_cosine,
    windows,
)
from clusterdp.train.ranks import shared_flags
from clusterdp.train.settings import WorkerSettings
from tests.checkpoint.training import digest

BATCH = 16  # of all ranks together
STEPS = 10


def start(**train: Any) -> JobHandle:
    group = Group.start(Rendezvous.find(), backend="gloo", timeout_s=60.0)
    return JobHandle(WorkerSettings(train=from_plain(TrainConfig, train)), group, StopSignal(), "local.1")


class Net(nn.Module):
    """Of several buckets at bucket_cap_mb=0.02, and with a ModuleList for FSDP to shard by."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem = nn.Linear(8, 64)
        self.norm: nn.Module = nn.BatchNorm1d(64) if norm else nn.Identity()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x))
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x).tanh()


def batches(rank: int = 0, size: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same global batches for any number of ranks."""
    draw = torch.Generator().manual_seed(5)
    each = BATCH // size
    whole = [torch.randn(BATCH, 8, generator=draw) for _ in range(STEPS)]
    return [
        (x[rank * each : (rank + 1) * each], x[rank * each : (rank + 1) * each].sum(1, keepdim=True)) for x in whole
    ]


def train(job: JobHandle, model: nn.Module) -> list[float]:
    """The weights after some steps, all of them on each rank."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    for x, y in batches(job.rank, job.world_size):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        job.amp.step(optimizer, clip_norm=job.train.clip_norm)
    return weights(model)


def weights(model: nn.Module) -> list[float]:
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in whole])[::37].tolist()


def by(strategies: list[dict[str, Any]], norm: bool = False) -> list[list[float]]:
    """Weights at the end, by each strategy. Each rank builds a model of its own random numbers, but for rank 0's."""
    job = start()
    answers = []
    for options in strategies:
        job = JobHandle(WorkerSettings(train=from_plain(TrainConfig, options)), job.group, StopSignal(), "local.1")
        model = Net(norm)
        if job.rank:
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(job.rank)
        answers.append(train(job, job.wrap(model)))
    job.group.close()
    return answers


def from_meta(saved: str) -> list[list[float]]:
    """The weights of a sharded model that was made on the meta device, after all steps; and after a resume in their
    middle by a second model."""
    job = start(strategy="fsdp")
    steps, ends = batches(job.rank, job.world_size), []
    for resumes in (False, True):
        with torch.device("meta"):
            model: nn.Module = Net()
        torch.manual_seed(job.rank + 10 * resumes)
        model = job.wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
        checkpointer = Checkpointer(saved, {"model": model, "optimizer": optimizer})
        first = checkpointer.restore().step if resumes else 0  # type: ignore[union-attr]
        for step, (x, y) in enumerate(steps[first:], first):
            if step == 3 and not resumes:
                checkpointer.save(step)
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
        ends.append(weights(model))
    job.group.close()
    return ends


def all_reduces(accumulate: int) -> list[int]:
    """Buckets of the model, and buckets that were added up in four batches, window by window."""
    job = start()
    model = job.wrap(Net(), bucket_cap_mb=0.02)
    assert isinstance(model, DistributedDataParallel)
    sent = 0

    def count(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are text
        nonlocal sent
        sent += 1
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model.register_comm_hook(None, count)
    model(torch.ones(1, 8)).sum().backward()
    counts = [sent]
    sent = 0
    for x, window in windows([torch.ones(1, 8)] * 4, accumulate):
        with gradient_sync(model, window.ends):
            (model(x).sum() / window.size).backward()
    job.group.close()
    return [*counts, sent]


def accumulated(strategy: str, k: int) -> list[float]:
    """Each rank takes its share of a batch in k pieces; the last window is a shorter one."""
    job = start(strategy=strategy)
    model = job.wrap(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    pieces = [piece for x, y in batches(job.rank, job.world_size) for piece in zip(x.chunk(k), y.chunk(k), strict=True)]
    for (x, y), window in windows(pieces[: -k // 2], k):
        with gradient_sync(model, window.ends):
            ((model(x) - y).square().mean() / window.size).backward()
        if window.ends:
            optimizer.step()
            optimizer.zero_grad()
    end = weights(model)
    job.group.close()
    return end


def overflow(level: str, clip: dict[str, float], loss_scale: Any = None) -> list[Any]:
    """Windows of 2 batches, six of them; in the third, the first batch of rank 1 alone overflows."""
    job = start()
    amp = Amp(level, job.device, loss_scale=loss_scale, init_scale=64.0, growth_interval=2)
    model = job.wrap(amp.cast(Net(norm=True)), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    amp.adopt(optimizer)
    seen = []
    for i, ((x, y), window) in enumerate(windows((batches(job.rank, job.world_size) * 2)[:12], 2)):
        with gradient_sync(model, window.ends):
            with amp.autocast():
                loss = (model(x).float() - y).square().mean() / window.size
            amp.backward(loss * (1e30 if (i, job.rank) == (4, 1) else 1))
        if window.ends:
            amp.step(optimizer, **clip)
            seen.append((amp.skipped, amp.scale, digest([p.detach() for p in model.parameters()])))
            optimizer.zero_grad()
    job.group.close()
    return seen


def not_finite(on_nan: str, how: str, level: str = "O0", rank: int = 1, strategy: str = "ddp") -> Any:
    """One rank's loss is not finite in the third step. What is said, and the weights and buffers after five."""
    job = start(strategy=strategy)
    amp = Amp(level, job.device, init_scale=64.0)
    model = job.wrap(Net(norm=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    nan_guard = NanGuard(model, job.group, on_nan)
    ends = []
    try:
        for i, (x, y) in enumerate(batches(job.rank, job.world_size)[:5]):
            optimizer.zero_grad()
            bad = i == 2 and job.rank == rank
            with amp.autocast():
                loss = (model(x * float("nan") if bad and how == "input" else x).float() - y).square().mean()
            if bad and how == "constant":
                loss = loss + float("inf")
            amp.backward(nan_guard.watch(loss, lambda i=i: [10 * i + job.rank]))
            if how == "gradient" and i == 2:  # as an overflow in the backward pass, which all ranks add up
                next(model.parameters()).grad.fill_(float("inf"))  # type: ignore[union-attr]
            amp.step(optimizer, nan_guard=nan_guard)
            ends.append(digest(weights(model)))
    except ClusterdpError as error:
        return str(error)
    clean = all(bool(t.isfinite().all()) for t in model.state_dict().values())
    job.group.close()
    return [ends, nan_guard.skipped, clean]


def differs(what: str) -> str:
    """What is said where rank 1 has another model."""
    job = start(strategy="fsdp" if what == "fsdp" else "ddp")
    model = Net()
    if job.rank == 1:
        if what in ("shape", "fsdp"):
            model.head = nn.Linear(64, 2)
        elif what == "missing":
            model.head = nn.Linear(64, 1, bias=False)
        elif what == "frozen":
            model.head.weight.requires_grad_(False)
        elif what == "order":
            model.stem, model.head = nn.Linear(8, 64), nn.Linear(64, 1)
            model._modules["stem"] = model._modules.pop("stem")
    try:
        job.wrap(model)
    except ClusterdpError as error:
        return str(error)
    return "nothing"


def batch_norms() -> list[Any]:
    """Weights and statistics, of DDP with SyncBatchNorm; then the type of the module."""
    job = start(sync_batchnorm=True)
    model = job.wrap(Net(norm=True))
    assert isinstance(model, DistributedDataParallel)
    answer = [train(job, model), weights_of(model.module.norm), type(model.module.norm).__name__]
    model.eval()
    answer.append(model(torch.ones(2, 8)).tolist())
    job.group.close()
    return answer


def weights_of(norm: Any) -> list[float]:
    return [*norm.running_mean.tolist(), *norm.running_var.tolist(), float(norm.num_batches_tracked)]


def split() -> list[list[float]]:
    """The model in one piece; in two, inside DDP; and of two pieces in a DDP of their own."""
    job = start()

    def parts() -> list[nn.Sequential]:
        net = Net()
        return in_parts(nn.Sequential(net.stem, *net.blocks, net.head), 2)

    whole = job.wrap(nn.Sequential(*parts()))
    inside = job.wrap(ModelParallel(*parts(), devices=["cpu", "cpu"]))
    each = ModelParallel(*(job.wrap(part) for part in parts()), devices=["cpu", "cpu"])
    answers = [train(job, model) for model in (whole, inside, each)]
    job.group.close()
    return answers


class Forked(nn.Module):
    """Whose second half some batches do not need. `frozen` and `ignored` have no number in DDP; `scale`, which torch
    would have to be told of as `.scale`, has one."""

    _ddp_params_and_buffers_to_ignore = ("ignored.weight", "scale")

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.frozen = nn.PReLU().requires_grad_(False)
        self.ignored = nn.PReLU()
        self.used = nn.Linear(8, 1)
        self.spare = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, spare: bool) -> torch.Tensor:
        x = self.ignored(self.frozen(x * self.scale))
        out: torch.Tensor = self.used(x) + (self.spare(x) if spare else 0)
        return out


def unused(job: JobHandle, where: str) -> str:
    """An entry. where: all, or last: rank 1 alone, and in the very last step, after which it would not be noticed."""
    model = job.wrap(Forked())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loop = job.loop([torch.ones(2, 8)] * 4, {"model": model, "optimizer": optimizer})
    for x in loop:
        spare = where == "last" and (job.rank == 0 or loop.step < 3)
        model(x, spare).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return "done"


class Numbered(torch.utils.data.Dataset[torch.Tensor]):
    """Sample `bad` is NaN."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float("nan")) if index == self.bad else torch.sin(torch.arange(1.0, 9.0) * index)


def meets_nan(job: JobHandle, bad: int) -> None:
    """An entry."""
    model = job.wrap(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    nan_guard = job.nan_guard(model)
    assert nan_guard is not None
    loop = job.loop(job.loader(Numbered(bad), 4), {"model": model, "optimizer": optimizer, "amp": job.amp}, epochs=2)
    for x in loop:
        with gradient_sync(model, loop.window_ends):
            job.amp.backward(nan_guard.watch(model(x).mean(), loop.samples) / loop.window)
        if loop.window_ends:
            job.amp.step(optimizer, nan_guard=nan_guard)
            optimizer.zero_grad()


def resumes(job: JobHandle, record: str, signal_at: int | None = None, evaluate_at: int | None = None) -> None:
    """An entry that takes all it can from the config. Rank 1 gets a signal in step `signal_at`, in the middle of an
    evaluation of the averages if that is the step `evaluate_at`."""
    shared_flags.MOST_STEPS = 1
    buckets = {} if job.train.compile else {"bucket_cap_mb": 0.02}
    model = job.wrap(Net(norm=job.train.strategy == "ddp"), **buckets)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)  # 1e-8 is 0 in fp16
    job.amp.adopt(optimizer)
    ema, nan_guard = Ema(model, 0.9, amp=job.amp), job.nan_guard(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(2, 20))
    state = {"model": model, "optimizer": optimizer, "amp": job.amp, "ema": ema, "scheduler": scheduler}
    loop = job.loop(job.loader(Numbered(-1), 2), state, epochs=2)
    for x in loop:
        if loop.step == signal_at != evaluate_at and job.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        with gradient_sync(model, loop.window_ends):
            with job.amp.autocast():
                loss = (model(nn.functional.dropout(x, 0.1)).float() - x.sum(1, keepdim=True)).square().mean()
            job.amp.backward((nan_guard.watch(loss, loop.samples) if nan_guard else loss) / loop.window)
        if loop.window_ends:
            clip = {"clip_norm": job.train.clip_norm, "clip_value": job.train.clip_value}
            job.amp.step(optimizer, **clip, nan_guard=nan_guard)
            optimizer.zero_grad()
            scheduler.step()
            ema.update()
        if loop.step == evaluate_at:
            model.eval()
            with torch.no_grad(), ema.applied():
                for y in loop.watch([x] * 4):
                    model(y)
                    if evaluate_at == signal_at and job.rank == 1:
                        os.kill(os.getpid(), signal.SIGTERM)
            model.train()
    assert all(bool(here(p.detach()).isfinite().all()) for p in model.parameters()), "NaN is the same as any NaN"
    own = {name: thing.state_dict() for name, thing in loop.state.items() if name != "model"}
    whole = [own, [p.detach() for p in model.parameters()], torch.get_rng_state()]
    buffers = [*unwrap(model).buffers()]
    Path(record).mkdir(exist_ok=True)
    Path(record, str(job.rank)).write_text(digest(here(whole)) + digest(buffers))


def here(tree: Any) -> Any:
    """This rank's parts of DTensors."""
    if isinstance(tree, torch.Tensor):
        return tree.to_local() if hasattr(tree, "to_local") else tree
    if isinstance(tree, dict):
        return {key: here(value) for key, value in tree.items()}
    return [here(item) for item in tree] if isinstance(tree, (list, tuple)) else tree


def unpickled(strategies: list[dict[str, Any]], folder: str) -> list[str]:
    """The functions of torch that read any pickle that comes from another rank, while each strategy trains, saves,
    restores."""
    callers: list[str] = []
    plain = distributed_c10d._tensor_to_object

    def spy(*words: Any) -> Any:
        if distributed_c10d._unpickler is pickle.Unpickler:
            callers.append(" < ".join(frame.name for frame in traceback.extract_stack()[-6:-1][::-1]))
        return plain(*words)

    distributed_c10d._tensor_to_object = spy
    group = start().group
    for number, options in enumerate(strategies):
        job = JobHandle(WorkerSettings(train=from_plain(TrainConfig, options)), group, StopSignal(), "local.1")
        model = job.wrap(Net())
        train(job, model)
        saved = Checkpointer(Path(folder, str(number)), {"model": model})
        saved.save(1)
        saved.restore()
    group.close()
    return callers
