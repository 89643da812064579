"""What checkpoint_speed measures: ours, its peers, and the machine's limits, each on one rank."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.format import verified_reads

CHUNK = 16 << 20
warnings.simplefilter("ignore")


def build(mb: int) -> tuple[torch.nn.Module, torch.optim.Adam]:
    """A third of the bytes in one weight, the rest in layers of five sizes; Adam's moments are there already."""
    elements = mb * 10**6 // 4 // 3
    torch.manual_seed(0)
    module = torch.nn.Module()
    module.register_parameter("big", torch.nn.Parameter(torch.randn(elements // 3)))
    left, number = elements - elements // 3, 0
    sizes = [1000, 16_384, 65_536, 262_144, 1_048_576]
    while left > 0:
        size = min(sizes[number % len(sizes)], left)
        module.register_parameter(f"w{number}", torch.nn.Parameter(torch.randn(size)))
        left, number = left - size, number + 1
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return module, optimizer


class Peers:
    """One rank's. `name` is of NAMES in checkpoint_speed; prepare() gives what is to be timed."""

    def __init__(self, folder: Path, rank: int, size: int, mb: int):
        self.folder, self.rank, self.size, self.mb = folder, rank, size, mb
        self.module, self.optimizer = build(mb)
        state = {"model": self.module, "optimizer": self.optimizer}
        self.checkpointer = Checkpointer(folder / "ours", state, keep_last=1000, check_replicas_every=0)
        self.number = 0
        self.share = mb * 10**6 // size
        self.source = torch.ones(self.share, dtype=torch.uint8)
        self.target = torch.ones(self.share, dtype=torch.uint8)
        self.pending: Any = None
        self.gloo = dist.group.WORLD
        self.small = torch.randn(400, 400)

    def has(self, name: str) -> bool:
        needs = {"lightning": "lightning", "accelerate": "accelerate"}.get(name.split()[-1])
        if needs:
            return importlib.util.find_spec(needs) is not None
        return not (name == "stall dcp process" and self.size > 2)  # one more process a rank: more than there is room

    def prepare(self, name: str) -> Callable[[], Any]:
        self.number += 1
        path = self.folder / f"written-{self.number}"
        kind, _, peer = name.partition(" ")
        method: Callable[[Path], Callable[[], Any]] = getattr(self, f"_{kind}_{peer.replace(' ', '_') or 'ours'}")
        return method(path)

    def finish(self, name: str) -> None:
        """What the timed part has left going on."""
        self.checkpointer.wait()
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def state(self) -> dict[str, Any]:
        return {"model": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    # save: durable when the timed part is over, where the peer can do that

    def _save_ours(self, path: Path) -> Callable[[], Any]:
        return lambda: self.checkpointer.save(self.number)

    def _save_raw(self, path: Path) -> Callable[[], Any]:
        data = memoryview(self.source.numpy())

        def write() -> None:
            fd = os.open(f"{path}-{self.rank}", os.O_WRONLY | os.O_CREAT, 0o644)
            for start in range(0, len(data), CHUNK):
                os.write(fd, data[start : start + CHUNK])
            os.fsync(fd)
            os.close(fd)
            dist.barrier()

        return write

    def _on_first(self, write: Callable[[], Any]) -> Callable[[], Any]:
        def all_ranks() -> None:
            if self.rank == 0:
                write()
            dist.barrier()

        return all_ranks

    def _save_torch(self, path: Path) -> Callable[[], Any]:
        return self._on_first(lambda: torch.save(self.state(), path))

    def _save_torch_durable(self, path: Path) -> Callable[[], Any]:
        def write() -> None:
            with open(f"{path}.tmp", "wb") as file:
                torch.save(self.state(), file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(f"{path}.tmp", path)
            fd = os.open(self.folder, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

        return self._on_first(write)

    def _flat(self) -> dict[str, torch.Tensor]:
        tensors = {f"model.{name}": tensor for name, tensor in self.module.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in state.items()}
        return tensors

    def _save_safetensors(self, path: Path) -> Callable[[], Any]:
        from safetensors.torch import save_file

        def write() -> None:
            save_file(self._flat(), path)
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

        return self._on_first(write)

    def _save_dcp(self, path: Path) -> Callable[[], Any]:
        return lambda: dcp.save(self.state(), checkpoint_id=path)

    def _save_lightning(self, path: Path) -> Callable[[], Any]:
        from lightning.fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=1)
        return self._on_first(lambda: fabric.save(path, self.state()))

    def _save_accelerate(self, path: Path) -> Callable[[], Any]:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        accelerator._models, accelerator._optimizers = [self.module], []
        accelerator._custom_objects = [self.optimizer]
        return lambda: accelerator.save_state(str(path))

    # stall: the call returns, and the training goes on

    def _stall_ours(self, path: Path) -> Callable[[], Any]:
        return lambda: self.checkpointer.async_save(self.number)

    def _stall_memcpy(self, path: Path) -> Callable[[], Any]:
        return lambda: self.target.copy_(self.source)

    def _stall_dcp(self, path: Path, kind: str) -> Callable[[], Any]:
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        def begin() -> None:
            which = AsyncCheckpointerType(kind)
            self.pending = dcp.async_save(
                self.state(), checkpoint_id=path, async_checkpointer_type=which, process_group=self.gloo
            )

        return begin

    def _stall_dcp_thread(self, path: Path) -> Callable[[], Any]:
        return self._stall_dcp(path, "thread")

    def _stall_dcp_process(self, path: Path) -> Callable[[], Any]:
        return self._stall_dcp(path, "process")

    # load: from the page cache into the live tensors

    def _saved(self, write: Callable[[Path], Callable[[], Any]], name: str) -> Path:
        path = self.folder / f"kept-{name}"
        if not (self.folder / f"done-{name}-{self.rank}").exists():
            write(path)()
            (self.folder / f"done-{name}-{self.rank}").touch()
        return path

    def _load_ours(self, path: Path) -> Callable[[], Any]:
        self._saved(self._save_ours, "ours")
        return self.checkpointer.restore

    def _load_unverified(self, path: Path) -> Callable[[], Any]:
        self._saved(self._save_ours, "ours")

        def restore() -> None:
            with mock.patch.object(verified_reads, "checksum", return_value=mock.ANY):
                self.checkpointer.restore()

        return restore

    def _load_pages(self, path: Path) -> Callable[[], Any]:
        kept = self._saved(self._save_torch, "torch")
        target = memoryview(torch.ones(self.mb * 10**6, dtype=torch.uint8).numpy())

        def read() -> None:
            with open(kept, "rb", buffering=0) as file:
                done = 0
                while done < len(target) and (count := file.readinto(target[done : done + CHUNK])):
                    done += count

        return read

    def _load_torch(self, path: Path) -> Callable[[], Any]:
        kept = self._saved(self._save_torch, "torch")

        def load() -> None:
            state = torch.load(kept, map_location="cpu", weights_only=True)
            self.module.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])

        return load

    def _load_safetensors(self, path: Path) -> Callable[[], Any]:
        from safetensors.torch import load_file

        kept = self._saved(self._save_safetensors, "safetensors")

        def load() -> None:
            tensors = load_file(kept)
            for name, tensor in self._flat().items():
                tensor.detach().copy_(tensors[name])

        return load

    def _load_dcp(self, path: Path) -> Callable[[], Any]:
        kept = self._saved(self._save_dcp, "dcp")
        return lambda: dcp.load(self.state(), checkpoint_id=kept)

    # step: one thread of arithmetic that leaves a core to the writer

    def _step(self) -> None:
        for _ in range(300):
            self.small @ self.small

    def _step_ours(self, path: Path) -> Callable[[], Any]:
        return self._step

    def _step_while_saving(self, path: Path) -> Callable[[], Any]:
        self.checkpointer.async_save(self.number)
        return self._step
