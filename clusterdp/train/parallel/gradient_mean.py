"""GradientMean: averages gradients over the ranks at the end of each backward pass, whichever modules were called.

DistributedDataParallel averages only the gradients of a backward pass that its own forward() has prepared. A step of
a GAN, of a distillation, or of an actor and its critic calls the parts of a model one by one. GradientMean needs no
forward pass: a hook of each parameter notes that the parameter has a gradient, and a callback of autograd's engine,
which runs at the end of the backward pass, averages the gradients of all parameters that were noted. After backward(),
the program finds the same gradients as under DDP, so that clipping, a GradScaler and several optimizers work as usual.

DDP sends the first gradients while the backward pass still computes the others; GradientMean does not. A model whose
forward() is called is therefore better in DDP.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.utils import _sync_params_and_buffers
from torch.nn.parallel import DistributedDataParallel

from clusterdp.errors import ConfigError, TrainError
from clusterdp.train.parallel.same_model import broadcast_weights

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group

CHUNK_MB = 25  # what is sent at once, as DDP's bucket_cap_mb
_means: WeakKeyDictionary[nn.Module, GradientMean] = WeakKeyDictionary()


def has_forward(model: nn.Module) -> bool:
    """Returns whether the model can be called. A ModuleList or ModuleDict cannot: only its parts are called."""
    return getattr(model.forward, "__func__", model.forward) is not nn.Module.forward


def called_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yields the model, or its parts if the model has no forward() of its own."""
    if has_forward(model):
        yield model
    else:
        for part in model.children():
            yield from called_modules(part)


def average(model: nn.Module, group: Group, options: Mapping[str, Any]) -> None:
    """Averages the model's gradients from now on. Collective. All ranks begin with rank 0's weights.

    model: may be a DistributedDataParallel. Then GradientMean averages only after the backward passes that DDP has not
    prepared. options: DDP's; bucket_cap_mb and broadcast_buffers have an effect here.
    """
    if (earlier := _means.pop(model, None)) is not None:
        earlier.remove()
    if group.rendezvous.world_size == 1:
        return
    if not isinstance(model, DistributedDataParallel):
        broadcast_weights(model)
    _means[model] = GradientMean(model, group, options)


def mean_of(model: nn.Module) -> GradientMean | None:
    """Returns the GradientMean that averages the model's gradients, or None."""
    return _means.get(model)


class GradientMean:
    """The averaging of one model's gradients. All ranks make the same backward passes."""

    def __init__(self, model: nn.Module, group: Group, options: Mapping[str, Any]):
        self.is_on = True  # whether gradients are averaged; if not, they add up for a later backward pass
        self._group = group
        self._most = int(options.get("bucket_cap_mb", CHUNK_MB) * 2**20)
        self._parameters = [p for p in model.parameters() if p.is_floating_point() or p.is_complex()]
        self._model = ref(model)  # a key of _means, which a strong reference would keep for ever
        self._broadcasts = options.get("broadcast_buffers", True)
        self._noted: set[int] = set()  # numbers of the parameters whose gradients are to be averaged
        self._task: int | None = None  # autograd's number of the backward pass that will call _end()
        self._by_ddp = False  # whether DDP has prepared the next backward pass
        self._hooks: list[Any] = []
        for number, parameter in enumerate(self._parameters):
            is_trained = parameter.requires_grad
            parameter.requires_grad_(True)  # a frozen parameter takes no hook, and a GAN freezes and thaws its parts
            # A hook with a strong reference would keep the parameters for ever: autograd holds it where the garbage
            # collector does not look.
            note = partial(_note, ref(self), number)
            self._hooks.append(parameter.register_post_accumulate_grad_hook(note))  # type: ignore[no-untyped-call]
            parameter.requires_grad_(is_trained)
        if isinstance(model, DistributedDataParallel):
            self._hooks.append(model.register_forward_pre_hook(self._note_forward))

    def remove(self) -> None:
        """Ends the averaging."""
        for hook in self._hooks:
            hook.remove()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Lets gradients add up in the with block, for a later backward pass to average."""
        self.is_on = False
        try:
            yield
        finally:
            self.is_on = True

    def broadcast_buffers(self) -> None:
        """Gives all ranks rank 0's buffers, such as BatchNorm's statistics, as DDP does before each forward pass.
        Collective."""
        model = self._model()
        if self._broadcasts and model is not None and (buffers := [*model.buffers()]):
            assert dist.group.WORLD is not None
            _sync_params_and_buffers(dist.group.WORLD, buffers, CHUNK_MB * 2**20, src=0)

    def _note_forward(self, model: DistributedDataParallel, inputs: Any) -> None:
        if torch.is_grad_enabled() and model.require_backward_grad_sync:
            self._by_ddp = True

    def note(self, number: int) -> None:
        """Notes that a parameter has got a gradient, in a backward pass."""
        task = torch._C._current_graph_task_id()
        if task != self._task:  # the first gradient of this pass
            if self._task is not None:  # the pass before has failed, and has not called _end()
                self._noted.clear()
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        self._noted.add(number)

    def _end(self) -> None:
        """Averages what the backward pass has left. Collective. Ranks may have gradients of different parameters."""
        self._task = None
        by_ddp, self._by_ddp = self._by_ddp, False
        if not self.is_on:
            return
        numbers, self._noted = sorted(self._noted), set()
        if not by_ddp:
            with torch.no_grad():
                self._average(self._agreed(numbers))

    def _agreed(self, numbers: Sequence[int]) -> Sequence[int]:
        """Returns the parameters with gradients on any rank. Where this rank has none, the gradient is zeros."""
        hashed = hashlib.blake2b(array("I", numbers).tobytes(), digest_size=7)
        number = int.from_bytes(hashed.digest(), "big")
        most, least = self._group.agree(number, -number)
        if most == -least:
            return numbers
        here = [(number, _sparse_dim(self._parameters[number].grad)) for number in numbers]
        union = {number: sparse for those in self._group.gather(here) for number, sparse in those}
        for number, sparse in union.items():
            parameter = self._parameters[number]
            if parameter.grad is None:
                zeros = torch.zeros_like(parameter)
                parameter.grad = zeros.to_sparse(sparse) if sparse else zeros
        return sorted(union)

    def _average(self, numbers: Sequence[int]) -> None:
        size = self._group.rendezvous.world_size
        sent: list[tuple[list[torch.Tensor], torch.Tensor, Any]] = []
        for gradients in self._chunks(numbers):
            flat = gradients[0] if gradients[0].is_sparse else torch.cat([each.reshape(-1) for each in gradients])
            sent.append((gradients, flat.div_(size), dist.all_reduce(flat, async_op=True)))
            if len(sent) > 1:  # one chunk is copied while the next one is on its way
                self._receive(*sent.pop(0))
        for chunk in sent:
            self._receive(*chunk)

    @staticmethod
    def _receive(gradients: list[torch.Tensor], flat: torch.Tensor, work: Any) -> None:
        work.wait()
        if flat is not gradients[0]:
            parts = torch.split(flat, [gradient.numel() for gradient in gradients])
            torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])

    def _chunks(self, numbers: Sequence[int]) -> Iterator[list[torch.Tensor]]:
        """Yields gradients of one type and device, up to the size of a chunk. A sparse one is alone."""
        chunk: list[torch.Tensor] = []
        room = 0
        for number in numbers:
            gradient = self._parameters[number].grad
            if gradient is None:
                raise TrainError(
                    "model: a hook has cleared a gradient before the ranks could average it, at the end of the "
                    "backward pass. Step the optimizers after backward(), not in hooks of the parameters."
                )
            if gradient.is_sparse:
                yield [gradient]
                continue
            alike = chunk and gradient.dtype == chunk[0].dtype and gradient.device == chunk[0].device
            if chunk and (not alike or gradient.nbytes > room):
                yield chunk
                chunk = []
            if not chunk:
                room = self._most
            chunk.append(gradient)
            room -= gradient.nbytes
        if chunk:
            yield chunk


def _note(mean: ref[GradientMean], number: int, parameter: torch.Tensor) -> None:
    if (its := mean()) is not None:
        its.note(number)


def _sparse_dim(gradient: torch.Tensor | None) -> int:
    return gradient.sparse_dim() if gradient is not None and gradient.is_sparse else 0


def refuse_hook(comm_hook: str | None) -> None:
    """Raises ConfigError if a communication hook of DDP is set for a model that DDP cannot wrap."""
    if comm_hook is not None:
        raise ConfigError(
            f"train.comm_hook: {comm_hook} works in DistributedDataParallel, which cannot wrap a model without a "
            "forward() of its own. Leave it out; or give the model a forward() that calls its parts."
        )
