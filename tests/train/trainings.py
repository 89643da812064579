"""Entries and programs that train with a Trainer."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from clusterdp.errors import ClusterdpError, ConfigError
from clusterdp.train import JobHandle, Trainer, early_stopping, keep_best, load_predictions
from clusterdp.train.ranks import shared_flags
from tests.checkpoint.training import digest

SAMPLES, FEATURES = 176, 16


class Net(nn.Module):
    """With what makes an exact resume hard, and gradients of two buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(FEATURES, 128)
        self.norm = nn.BatchNorm1d(128)
        self.body = nn.Linear(128, 128)
        self.head = nn.Linear(128, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.norm(self.stem(x)).relu(), 0.3, self.training)
        out: torch.Tensor = self.head(self.body(x).relu())
        return out


class Noisy(Dataset[Any]):
    """Augmented at random."""

    def __init__(self, size: int = SAMPLES) -> None:
        draw = torch.Generator().manual_seed(3)
        self.x = torch.randn(size, FEATURES, generator=draw)
        self.y = self.x[:, :3].argmax(1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index] + 0.1 * torch.rand(FEATURES), self.y[index]


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One number a sample."""
    return (outputs.argmax(1) == targets).float()


def held_out() -> TensorDataset:
    data = Noisy(51)  # uneven over any number of ranks
    return TensorDataset(data.x, data.y)


def striker(job: JobHandle, fault: list[Any] | None) -> Any:
    """A callback for each step. fault: (signal, the step after which it comes, the rank that gets it). SIGKILL comes
    later, if nothing has been saved by then."""

    def is_saved() -> bool:
        assert job.run_dir is not None
        return any('"saved"' in file.read_text() for file in (job.run_dir / "events").glob("*"))

    def strike(trainer: Trainer, values: Any) -> None:
        assert trainer.loop is not None
        if not fault or job.rank != fault[2] or trainer.loop.step + 1 < fault[1]:
            return
        if trainer.loop.step + 1 == fault[1] if fault[0] != "SIGKILL" else is_saved():
            os.kill(os.getpid(), getattr(signal, fault[0]))

    return strike


def fit(
    job: JobHandle,
    record: str,
    amp: str = "fp32",
    epochs: int | None = 3,
    fault: list[Any] | None = None,
    limits: dict[str, int] | None = None,
) -> None:
    """fault: (signal, the step after which it comes, the rank that gets it). limits: arguments of Trainer.fit()."""
    shared_flags.MOST_STEPS = 1
    torch.manual_seed(5 + job.rank)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    trainer = Trainer(
        net,
        nn.CrossEntropyLoss(),
        optimizer,
        {"accuracy": accuracy},
        job=job,
        amp=amp,
        accumulate=2,
        clip_norm=1.0,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30),
        on_step=[striker(job, fault)],
        on_epoch=[keep_best("val_loss")],
        wrap={"bucket_cap_mb": 0.03},
    )
    history = trainer.fit(Noisy(), held_out(), epochs=epochs, batch_size=16 // job.world_size, **(limits or {}))
    state = [net.state_dict(), optimizer.state_dict(), trainer.amp.state_dict(), torch.get_rng_state()]
    norms = [name for name in net.state_dict() if name.startswith("norm.")]
    end = {"history": history.rows, "digest": digest([dict(net.named_parameters()), *state[1:]]), "best": None}
    end["buffers"] = digest({name: net.state_dict()[name] for name in norms})
    scores = trainer.evaluate(held_out())
    best = min((row for row in history if "val_loss" in row), key=lambda row: row["val_loss"])
    assert trainer.load_best() == best["step"]
    end["best"] = abs(trainer.evaluate(held_out())["loss"] - best["val_loss"])
    assert abs(scores["loss"] - history[-1]["val_loss"]) < 1e-6
    Path(record, f"end-{job.rank}").write_text(json.dumps(end))


def evaluates_after_epochs(job: JobHandle, record: str, fault: list[Any] | None = None) -> None:
    """fault: (signal, the epoch after which it comes, the rank that gets it), before the callback evaluates."""
    shared_flags.MOST_STEPS = 1
    torch.manual_seed(0)
    net = nn.Linear(FEATURES, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def test(trainer: Trainer, row: Any) -> None:
        if fault and fault[1:] == [row["epoch"], job.rank]:
            os.kill(os.getpid(), getattr(signal, fault[0]))
        row["test_loss"] = trainer.evaluate(held_out(), batch_size=4)["loss"]

    every = {"scheduler": scheduler, "scheduler_every": "epoch", "on_epoch": [test]}
    history = Trainer(net, nn.CrossEntropyLoss(), optimizer, job=job, **every).fit(Noisy(), epochs=3, batch_size=8)
    end = {"history": history.rows, "digest": digest([net.state_dict(), scheduler.state_dict()])}
    Path(record, f"end-{job.rank}").write_text(json.dumps(end))


def alone(job: JobHandle, size: int) -> Any:
    """Scores and predictions of `size` samples by a net that is the same everywhere."""
    torch.manual_seed(0)
    net = Net()
    trainer = Trainer(net, nn.CrossEntropyLoss(), None, {"accuracy": accuracy, "total": total}, job=job)
    data = Noisy(size)
    whole = TensorDataset(data.x, data.y)
    shown = trainer.predict(whole, batch_size=4)
    net.eval()
    with torch.no_grad():
        assert torch.allclose(shown, net(data.x), atol=1e-6)
    forms = Trainer(Forms(), job=job).predict(data.x, batch_size=4)
    assert torch.equal(forms["twice"][0], data.x * 2)
    assert torch.equal(forms["half"], data.x.half())
    with tempfile.TemporaryDirectory() as own:
        folder = Trainer(Forms(), job=job).predict(data.x, batch_size=4, to=job.group.gather(own)[0])
        files = load_predictions(folder)
        assert numpy.array_equal(files["twice"][1], forms["twice"][1])
        assert numpy.array_equal(files["half"], forms["half"])
        job.group.agree(0)  # all have read
    return [trainer.evaluate(whole, batch_size=4), digest(shown)]


class Forms(nn.Module):
    """Outputs of several parts."""

    def forward(self, x: torch.Tensor) -> Any:
        return {"twice": (x * 2, x.sum(1)), "half": x.half()}


def statistics(job: JobHandle) -> list[str]:
    """Of its BatchNorm on this rank, after it has trained; and once it has evaluated."""
    torch.manual_seed(0)
    net = Net()
    trainer = Trainer(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1), job=job)
    trainer.fit(Noisy(), batch_size=8)
    answers = [digest(dict(net.named_buffers()))]
    trainer.evaluate(held_out())
    return [*answers, digest(dict(net.named_buffers()))]


def wrapped(job: JobHandle) -> list[Any]:
    """What becomes of a level of one's own, of a model whose parts are in DDP, and of one that is compiled already."""
    net = Net()
    trainer = Trainer(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), job=job, amp="O2")
    parts = nn.Sequential(*(job.wrap(nn.Linear(FEATURES, FEATURES)) for _ in range(2)))
    answers = [str(net.head.weight.dtype), type(trainer.model).__name__, type(Trainer(parts, job=job).model).__name__]
    try:
        return [*answers, type(Trainer(torch.compile(nn.Linear(1, 1)), job=job).model).__name__]
    except ConfigError as error:
        return [*answers, str(error)]


class Worst:
    """A callback with state: the largest loss of a step, and the number of evaluations."""

    per_rank = True

    def __init__(self) -> None:
        self.seen = {"loss": 0.0, "evaluations": 0}

    def on_step(self, trainer: Trainer, values: Any) -> None:
        self.seen["loss"] = max(self.seen["loss"], float(values["loss"]))

    def on_validation(self, trainer: Trainer, row: Any) -> None:
        self.seen["evaluations"] += 1

    def state_dict(self) -> dict[str, Any]:
        return dict(self.seen)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = dict(state)


def validates(job: JobHandle, record: str, fault: list[Any] | None = None, every: int | None = 3) -> None:
    """Evaluates within epochs of 11 steps, with random numbers. fault: (signal, step of the evaluation, rank, batch of
    all evaluations)."""
    shared_flags.MOST_STEPS = 1
    torch.manual_seed(5)
    net, worst, batches = Net(), Worst(), [0]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def forward(trainer: Trainer, batch: Any) -> torch.Tensor:
        loss = trainer.loss(trainer.model(batch[0]), batch[1])  # type: ignore[misc]
        if net.training:
            return loss
        batches[0] += 1
        assert trainer.loop is not None
        if fault and job.rank == fault[2] and trainer.loop.step == fault[1] and batches[0] == fault[3]:
            os.kill(os.getpid(), getattr(signal, fault[0]))
        return loss + torch.rand(())

    trainer = Trainer(
        net, nn.CrossEntropyLoss(), optimizer, job=job, forward=forward, callbacks=[worst, keep_best()], accumulate=2
    )
    history = trainer.fit(Noisy(), held_out(), epochs=2, batch_size=16 // job.world_size, val_every_steps=every)
    state = digest([net.state_dict(), optimizer.state_dict(), torch.get_rng_state()])
    end = {"history": history.rows, "within": history.within, "worst": worst.seen, "digest": state}
    Path(record, f"end-{job.rank}").write_text(json.dumps(end))


def total(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float(targets.sum()) / len(targets)


def stops_early(job: JobHandle, where: str) -> list[Any]:
    """Rank 1 alone has had enough."""
    shared_flags.MOST_STEPS = 1
    torch.manual_seed(0)
    net = nn.Linear(FEATURES, 3)

    def on_step(trainer: Trainer, values: Any) -> None:
        if where == "step" and job.rank == 1 and trainer.loop is not None and trainer.loop.step == 4:
            trainer.stop("enough")

    def on_epoch(trainer: Trainer, row: Any) -> None:
        if where == "epoch" and job.rank == 1:
            trainer.stop("enough")

    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    watch = [early_stopping("val_loss", patience=2)] if where == "plateau" else [on_epoch]
    trainer = Trainer(net, nn.CrossEntropyLoss(), optimizer, [accuracy], job=job, on_step=[on_step], on_epoch=watch)
    history = trainer.fit(Noisy(), held_out(), epochs=9, batch_size=8)
    job = JobHandle(job._settings, job.group, job.stop_signal, "1.1")
    again = Trainer(net, nn.CrossEntropyLoss(), optimizer, [accuracy], job=job, on_epoch=watch)
    resumed = again.fit(Noisy(), held_out(), epochs=9, batch_size=8)
    assert resumed.rows == history.rows
    end = [trainer.loop.step if trainer.loop else None, len(history)]
    return [*end, len(again.fit(Noisy(), held_out(), epochs=10, batch_size=8))]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.whole = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.a(x).relu()
        return x + self.b(x) if self.whole else x


class Forked(nn.Module):
    """Two blocks and a head, of which a rank may leave out something: the first block, or a layer in the second."""

    def __init__(self, without: str = "") -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Pair(), Pair()])
        self.blocks[1].whole = without != "layer"
        self.head = nn.Linear(FEATURES, 3)
        self.first = int(without == "block")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in list(self.blocks)[self.first :]:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


def sharded(job: JobHandle, what: str) -> Any:
    """With FSDP2. what: goes otherwise on rank 1."""
    torch.manual_seed(0)
    net = Forked(what if job.rank == 1 else "")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trainer = Trainer(net, nn.CrossEntropyLoss(), optimizer, [accuracy], job=job)
    if what == "watch":
        loop = job.loop([torch.zeros(2, FEATURES)], {"model": net})
        for x in loop:
            net(x).sum().backward()
        for x in loop.watch([torch.zeros(2, FEATURES)] * (2 + job.rank)):
            net(x)
        return None
    if what == "nothing to evaluate":
        return trainer.evaluate(Noisy(1))
    history = trainer.fit(Noisy(), held_out(), epochs=2, batch_size=16 // job.world_size)
    shown = trainer.predict(held_out(), batch_size=5)
    return [history.rows, shown.tolist(), trainer.evaluate(held_out(), batch_size=5)]


def bad_metric(job: JobHandle, kind: str, rank: int) -> None:
    """A metric that goes wrong on one rank."""
    net = nn.Linear(FEATURES, 3)

    def metric(outputs: torch.Tensor, targets: torch.Tensor) -> Any:
        if kind == "graph":
            return net(torch.ones(1, FEATURES)).sum()
        return "good" if job.rank == rank else 1.0

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    Trainer(net, nn.CrossEntropyLoss(), optimizer, {"odd": metric}, job=job).fit(Noisy(), batch_size=4)


class OwnAccuracy:
    """Of the samples that it has seen itself: nothing reduces it over the ranks, and no checkpoint has it."""

    def __init__(self) -> None:
        self.reset()

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.right += int((outputs.argmax(1) == targets).sum())
        self.seen += len(targets)

    def compute(self) -> float:
        return self.right / self.seen

    def reset(self) -> None:
        self.right = self.seen = 0


def own_metric(job: JobHandle) -> None:
    """Which epoch is the best is asked of it."""
    net = nn.Linear(FEATURES, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    best = keep_best("val_own", mode="max")
    trainer = Trainer(net, nn.CrossEntropyLoss(), optimizer, {"own": OwnAccuracy()}, job=job, on_epoch=[best])
    trainer.fit(Noisy(), held_out(), epochs=3, batch_size=4)


class Deadly(Noisy):
    """Kills the worker that reads its sample."""

    def __init__(self, rank: int):
        super().__init__()
        self.rank = rank

    def __getitem__(self, index: int) -> Any:
        if int(os.environ["RANK"]) == self.rank and index == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def worker_dies(job: JobHandle, rank: int) -> None:
    net = nn.Linear(FEATURES, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    Trainer(net, nn.CrossEntropyLoss(), optimizer, job=job).fit(
        Deadly(rank), batch_size=4, shuffle=False, num_workers=1
    )


def in_tensors(job: JobHandle, record: str, by_sample: str, fault: list[Any] | None = None) -> None:
    """by_sample: the attempt that collates samples, as a collate_fn makes it do. Uneven over two ranks."""
    shared_flags.MOST_STEPS = 1
    torch.manual_seed(5)
    net = Net()

    options: dict[str, Any] = {"collate_fn": default_collate} if job.attempt == by_sample else {}
    trainer = Trainer(
        net, nn.CrossEntropyLoss(), torch.optim.AdamW(net.parameters()), job=job, on_step=[striker(job, fault)]
    )
    history = trainer.fit(held_out(), held_out(), epochs=3, batch_size=9 // job.world_size, **options)
    scores = [trainer.evaluate(held_out(), **options), trainer.predict(held_out(), **options)]
    end = [history.rows, digest([dict(net.named_parameters()), scores, torch.get_rng_state()])]
    Path(record, f"end-{job.rank}").write_text(json.dumps(end))


class Adversaries(nn.Module):
    """The parts of a GAN in a module with a forward() of its own, as Lightning's users write it."""

    def __init__(self, generator: nn.Module, discriminator: nn.Module):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator

    def forward(self, noise: torch.Tensor) -> Any:
        return self.generator(noise)


def gan(job: JobHandle, record: str, model: str = "parts", fault: list[Any] | None = None) -> None:
    """A GAN whose step calls both parts. model: "parts" in a ModuleDict; a module with a "forward" that is not called;
    parts that are "wrapped" each; or gradients that the program averages by "hand", too. fault: as for fit()."""
    shared_flags.MOST_STEPS = 1
    torch.manual_seed(5 + job.rank)
    g = nn.Sequential(nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.Linear(32, FEATURES))
    d = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, 32)), nn.ReLU(), nn.Linear(32, 1))
    nets = {"generator": g, "discriminator": d}
    if model == "wrapped":
        nets = {name: job.wrap(net, broadcast_buffers=name == "generator") for name, net in nets.items()}  # type: ignore[misc]
    whole = nn.ModuleDict(nets) if model != "forward" else Adversaries(g, d)
    g_opt, d_opt = (torch.optim.Adam(net.parameters(), lr=1e-2) for net in (g, d))

    def descend(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter in optimizer.param_groups[0]["params"] if model == "hand" else ():
            torch.distributed.all_reduce(parameter.grad)
        optimizer.step()
        g_opt.zero_grad()
        d_opt.zero_grad()

    def step(trainer: Trainer, batch: Any) -> dict[str, torch.Tensor]:
        make, judge = nets["generator"], nets["discriminator"]
        made = make(torch.randn_like(batch[0]))
        descend((judge(torch.cat([made.detach(), batch[0]])).split(len(made))[0]).mean(), d_opt)
        loss = -judge(made).mean()
        descend(loss, g_opt)
        return {"loss": loss.detach()}

    state = {"g_opt": g_opt, "d_opt": d_opt}
    trainer = Trainer(whole, job=job, step=step, state=state, on_step=[striker(job, fault)])
    history = trainer.fit(Noisy(), epochs=3, batch_size=16 // job.world_size)
    state_of_rank = [torch.get_rng_state(), whole.state_dict(), g_opt.state_dict(), d_opt.state_dict()]
    end = {"history": history.rows, "weights": digest([*whole.parameters()]), "state": digest(state_of_rank)}
    Path(record, f"end-{job.rank}").write_text(json.dumps(end))


def parts_of_ddp(job: JobHandle) -> tuple[str | None, bool]:
    """The error of a loop that calls the parts of a model in DDP, and whether it came after the first step."""
    model = job.wrap(Adversaries(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = job.loop(job.loader(Noisy(), 16), {"model": model, "optimizer": optimizer})
    error = None
    try:
        for x, _ in loop:
            model.module.discriminator(model.module.generator(x)).mean().backward()  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()
    except ClusterdpError as caught:
        error = str(caught)
    return error, loop.step == 1


def lbfgs(job: JobHandle, record: str, fault: list[Any] | None = None) -> None:
    """fault: as for fit()."""
    shared_flags.MOST_STEPS = 1
    torch.manual_seed(5)
    net = nn.Linear(FEATURES, 3)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3, line_search_fn="strong_wolfe")
    trainer = Trainer(net, nn.CrossEntropyLoss(), optimizer, job=job, on_step=[striker(job, fault)])
    data = Subset(held_out(), range(20))
    history = trainer.fit(data, epochs=8, batch_size=len(data) // job.world_size)
    end = {"loss": history["loss"], "weights": digest([*net.parameters()]), "state": digest(optimizer.state_dict())}
    Path(record, f"end-{job.rank}").write_text(json.dumps(end))


class Part(Dataset[Any]):
    """Of ranks that know theirs."""

    def __init__(self, numbers: range):
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(16.0) + self.numbers[index]


class Stream(IterableDataset[Any]):
    def __init__(self, numbers: range):
        self.numbers = numbers

    def __iter__(self) -> Any:
        return iter(Iterated(self.numbers))


class Iterated:
    def __init__(self, numbers: range):
        self.numbers = numbers

    def __iter__(self) -> Any:
        return (torch.arange(16.0) + number for number in self.numbers)


def reports_of_loaders(job: JobHandle) -> dict[str, int]:
    """How many lines rank 0 printed of ranks that have the same samples, by loader; and how many batches there were."""
    rank, ranks = job.rank, job.world_size
    whole, own = Part(range(12)), Part(range(rank, 12, ranks))
    loaders: dict[str, Any] = {
        "shuffled": DataLoader(whole, 2, shuffle=True),
        "in order": DataLoader(whole, 2),
        "iterable": Iterated(range(12)),
        "list": [*Iterated(range(12))],
        "stream": DataLoader(Stream(range(12)), 2),
        "reader": [[(numpy.arange(8.0) + number, number)] for number in range(3)],
        "dealt out": DataLoader(whole, 2, sampler=DistributedSampler(whole)),
        "ours": job.loader(whole, 2),
        "own part, shuffled": DataLoader(own, 2, shuffle=True),
        "subset": DataLoader(Subset(whole, range(rank, 12, ranks)), 2, shuffle=True),
        "own stream": DataLoader(Stream(range(rank, 12, ranks)), 2),
        "own iterable": Iterated(range(rank, 12, ranks)),
        "own batches": DataLoader(whole, batch_sampler=[[rank, rank + 2], [rank + 4, rank + 6]]),
        "no data": range(3),
        "made up": [torch.zeros(4, 4)] * 3,
    }
    found = {}
    for name, loader in loaders.items():
        print(f"<{name}>", flush=True)
        found[name] = sum(1 for _ in job.loop(loader, {}, epochs=2))
    return found
