"""DistributedDataParallel: its options from a config, its communication hooks by name, its errors in one line."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clusterdp.checkpoint.state.generators import living, reached
from clusterdp.errors import ConfigError, TrainError
from clusterdp.train.argument_names import check_options, checked
from clusterdp.train.parallel.gradient_mean import GradientMean, mean_of
from clusterdp.train.parallel.gradient_tree import GradientTree, check_trained
from clusterdp.wording import some_of

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group

SETTLING = 1  # forward passes in settle_buckets(); DDP counts a pass before it begins
HOOKS = ("fp16", "bf16", "powersgd")
_settled: WeakSet[torch.nn.Module] = WeakSet()


def wrap(
    model: nn.Module,
    options: Mapping[str, Any],
    comm_hook: str | None = None,
    powersgd: Mapping[str, Any] | None = None,
) -> DistributedDataParallel:
    """Wraps a model. Collective. options: arguments of DistributedDataParallel. A model on several devices stays on
    these devices."""
    check(options)
    # Gradients that lie in the buckets need no copy of their own, and no time for it.
    options = {"gradient_as_bucket_view": True, **options}
    wrapped = DistributedDataParallel(model, device_ids=_device_ids(model), **options)
    settle_buckets(wrapped)  # called before add_hook(), because PowerSGD would remember these gradients
    if comm_hook is not None:
        add_hook(wrapped, comm_hook, powersgd or {})
    return wrapped


def check(options: Mapping[str, Any]) -> None:
    """Raises ConfigError if DistributedDataParallel has no argument of this name."""
    check_options("train.ddp", options, DistributedDataParallel)


def _device_ids(model: nn.Module) -> list[torch.device] | None:
    """Returns DDP's device_ids; None on CPUs and for a model on several devices."""
    devices = {parameter.device for parameter in model.parameters()}
    return [*devices] if len(devices) == 1 and next(iter(devices)).type == "cuda" else None


def add_hook(model: DistributedDataParallel, name: str, powersgd: Mapping[str, Any] | None = None) -> None:
    """Compresses the gradients that the ranks exchange: to half the bytes, or to low rank (with PowerSGDState's
    options)."""
    if name == "powersgd":
        from clusterdp.train.parallel.powersgd import add_powersgd

        add_powersgd(model, powersgd or {})
    elif name in ("fp16", "bf16"):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hook = default_hooks.fp16_compress_hook if name == "fp16" else default_hooks.bf16_compress_hook
        # A lambda, because DDP recognizes bf16's hook by name and accepts it only with NCCL. Gloo adds up bf16 as well.
        model.register_comm_hook(None, lambda state, bucket: hook(state, bucket))  # noqa: PLW0108
    else:
        raise ConfigError(f"train.comm_hook: {name!r} is none of {', '.join(HOOKS)}. Write one of them.")


def hook_states(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the states of the communication hooks of a loop's models, by name."""
    hooks = {f"comm_hook.{name}": getattr(part, "comm_hook_state", None) for name, part in state.items()}
    return {name: hook for name, hook in hooks.items() if hook is not None}


def check_never_skips(state: Mapping[str, Any]) -> None:
    """Raises ConfigError if a loop's state has PowerSGD and a loss scale. The check also finds a loss scale that the
    program sets without the config."""
    if hook_states(state):
        for name, part in state.items():
            scaler = getattr(part, "scaler", part)
            if isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled():
                raise cannot_skip(f"the loss scale of state.{name}")


def cannot_skip(what: str) -> ConfigError:
    """Returns the error about PowerSGD with a loss scale. PowerSGD adds a step's compression error to the next
    gradient: an error that is not finite stays so for ever."""
    return ConfigError(
        f"train.comm_hook: powersgd cannot skip a step, which {what} needs. Use level bf16 or O0 without "
        "loss_scale and on_nan: stop, or comm_hook: bf16."
    )


class DdpModels:
    """The models in the state of a loop for which DistributedDataParallel or GradientMean exchanges gradients.

    trees: those of the models, with train.exact: any_ranks; empty before settle()."""

    def __init__(self, state: Mapping[str, Any]):
        self._state = state
        self.by_tree = False  # whether the models get trees
        self.trees: list[GradientTree] = []
        self._models: list[DistributedDataParallel] = []
        self._means: list[GradientMean] = []
        self._unused: list[DistributedDataParallel] = []  # models that have not been called
        self._is_first_window = True

    def settle(self) -> None:
        """Finds the models, and settles their buckets, before anything is restored. Collective."""
        modules = _modules_in(self._state)
        self._means = [mean for module in modules if (mean := mean_of(module)) is not None]
        self._models = _wrappers_of(modules)
        for model in self._models:
            settle_buckets(model)
        if self.by_tree:
            self._plant()

    def _plant(self) -> None:
        summed = [reduced(model) for model in self._models]
        self.trees = [
            GradientTree.of(model, own, at) for at, (model, own) in enumerate(zip(self._models, summed, strict=True))
        ]
        optimizers = [part for part in self._state.values() if isinstance(part, torch.optim.Optimizer)]
        check_trained(optimizers, [parameter for own in summed for parameter in own.values()])

    def why_not_exact(self) -> list[str]:
        """Returns the reasons why sums over the ranks may be rounded in another order after a resume."""
        loose = [model for model in self._models if model.static_graph and dist.get_world_size() > 2]  # a + b == b + a
        return ["model: DDP(static_graph=True), whose buckets cannot be settled"] if loose else []

    def begin(self, world_size: int) -> None:
        alone = [model for model in self._models if mean_of(model) is None]
        self._unused = [model for model in alone if world_size > 1 and is_unused(model)]

    def exchange(self, on: bool) -> None:
        """Decides whether the next backward passes average gradients over the ranks."""
        for model in self._models:
            model.require_backward_grad_sync = on
        for mean in self._means:
            mean.is_on = on

    def check_window(self, group: Group) -> None:
        """Checks the models at the end of each window. Collective after the first window."""
        for model in self._models:
            check_finished(model)
        for mean in self._means:
            mean.broadcast_buffers()
        if self._is_first_window:
            self._is_first_window = False
            self.check_exchanged(group)

    def check_exchanged(self, group: Group) -> None:
        """Checks, before a save, the models whose forward() has not been called. Collective if there are such
        models."""
        if self._unused:
            check_exchanged(self._unused, group)


def _modules_in(state: Mapping[str, Any]) -> list[nn.Module]:
    """Returns all modules that the state's objects reach, in an order that is the same on all ranks."""
    tops = [thing for part in state.values() for _, thing in reached(part) if isinstance(thing, nn.Module)]
    return [*dict.fromkeys(module for top in tops for module in top.modules())]


def _wrappers_of(modules: list[nn.Module]) -> list[DistributedDataParallel]:
    """Returns the models in DDP that have one of the modules. The state may have `model.module`, and only a local
    variable the wrapper: the garbage collector knows it."""
    place = {id(module): number for number, module in enumerate(modules)}
    found = living(DistributedDataParallel)
    first = [
        min((place[id(module)] for module in model.modules() if id(module) in place), default=-1) for model in found
    ]
    return [found[number] for number in sorted(range(len(found)), key=first.__getitem__) if first[number] >= 0]


def check_finished(model: DistributedDataParallel) -> None:
    """Raises the error of DDP's next forward pass right after a backward pass. Without this check, other ranks that did
    use the parameters would wait for this rank in an all-reduce. The check costs a microsecond."""
    try:
        model.reducer._rebuild_buckets()  # the buckets are settled: this call only checks that all gradients came
    except RuntimeError as error:
        if (told := explained(error, model)) is None:
            raise
        raise told from None


def is_unused(model: DistributedDataParallel) -> bool:
    """Returns whether no training forward pass has gone through DDP itself. settle_buckets() does not count."""
    return int(model._get_ddp_logging_data().get("iteration", 0)) < SETTLING  # type: ignore[no-untyped-call]


def check_exchanged(models: list[DistributedDataParallel], group: Group) -> None:
    """Raises TrainError on all ranks if a model has been trained without a call of DDP's forward(), which prepares the
    mean of the gradients. Collective. Models that have been called are removed from the list."""
    for model in [*models]:
        if not group.agree(int(is_unused(model)), least=True)[0]:
            models.remove(model)
            continue
        hashed = hashlib.blake2b(digest_size=7)
        for parameter in reduced(model).values():
            hashed.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        number = int.from_bytes(hashed.digest(), "big")
        most, least = group.agree(number, -number)
        if most != -least:  # equal parameters: not trained, or gradients averaged by the user
            raise TrainError(
                "model: its parts were called, and never the model itself, so DistributedDataParallel has exchanged no "
                "gradient, and the ranks differ. Give it a forward() that calls the parts; or leave its own forward() "
                "out, as in job.wrap(nn.ModuleList([generator, discriminator])), whose parts may be called one by one."
            )


def explained(error: RuntimeError, model: DistributedDataParallel) -> TrainError | None:
    """Returns DDP's error about unused parameters in one line, with their names; None for any other error."""
    numbers = re.search(r"did not receive grad for rank (\d+): ([\d ]+)", str(error))
    if numbers is None:
        return None
    names = [*reduced(model)]
    unused = [names[int(number)] for number in numbers[2].split()]
    return TrainError(
        f"model: on rank {numbers[1]} these parameters had no part in the loss: {some_of(unused)}. Use "
        "them, freeze them with requires_grad_(False), or set train.ddp: {find_unused_parameters: true}, which costs "
        "time in each step."
    )


class _TouchAll(torch.nn.Module):
    """A stand-in for the model whose backward pass reaches its parameters from the last to the first, with zeros.
    sparse: the ids of those that DDP takes for parameters with sparse gradients.

    DDP itself assumes that gradients become ready in this order in a real backward pass.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], sparse: set[int]):
        super().__init__()
        self.all = parameters  # in a plain list, the parameters stay parameters of the model only
        self.sparse = sparse

    def forward(self) -> torch.Tensor:
        total = torch.zeros(())
        for parameter in self.all:
            total = _Touch.apply(total, parameter, id(parameter) in self.sparse)  # type: ignore[no-untyped-call]
        return total


class _Touch(torch.autograd.Function):
    """Returns the first tensor; the second's gradient is zeros, which take no time on the CPU until they are read."""

    @staticmethod
    def forward(ctx: Any, total: torch.Tensor, parameter: torch.Tensor, is_sparse: bool) -> torch.Tensor:
        ctx.save_for_backward(parameter)
        ctx.layout = torch.sparse_coo if is_sparse else parameter.layout
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return gradients[0], torch.zeros_like(ctx.saved_tensors[0], layout=ctx.layout), None


def reduced(model: DistributedDataParallel) -> dict[str, torch.nn.Parameter]:
    """Returns the parameters whose gradients DDP averages, in the order of DDP's parameter numbers."""
    ignored = model.parameters_to_ignore  # torch calls the model's own parameters `.name`
    return {
        name: parameter
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and (name if "." in name else f".{name}") not in ignored
    }


@checked
def settle_buckets(model: torch.nn.Module) -> None:
    """Makes DDP regroup its buckets now, by a throw-away backward pass. Call it once on all ranks, before step one.

    DDP regroups once, before its second forward pass, by the order in which gradients became ready in the first one.
    Gloo's and NCCL's sums follow the buckets, so the first step after a resume would add up in another order than the
    same step of the uninterrupted run: over 4 ranks the last bits differ. With settled buckets, every step uses the
    same layout, in fresh and in resumed runs. Parameters, buffers and random state are untouched. Gradients are None
    afterwards. A second call for the same model does nothing.
    """
    if not isinstance(model, DistributedDataParallel) or model.find_unused_parameters or model in _settled:
        return  # with find_unused_parameters, DDP never regroups
    if model.static_graph:
        _settled.add(model)
        warnings.warn(
            "DDP(static_graph=True): its buckets cannot be settled beforehand. A resumed run may differ from the "
            "uninterrupted one in the last bits.",
            stacklevel=2,
        )
        return
    real = model.module
    parameters = [*reduced(model).values()]
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    sparse = {id(each.weight) for each in real.modules() if isinstance(each, embeddings) and each.sparse}
    stand_in = _TouchAll(parameters, sparse)
    try:
        model.module = stand_in
        model.require_forward_param_sync = False  # else DDP would look for the model's buffers in the stand-in
        with torch.enable_grad(), _exchanging_nothing(model, parameters):
            model().backward()
    finally:
        model.module, model.require_forward_param_sync = real, True
    for parameter in parameters:
        parameter.grad = None
    if model.reducer._rebuild_buckets():  # as DDP does at the beginning of the second forward pass
        model._has_rebuilt_buckets = True
    _settled.add(model)


@contextmanager
def _exchanging_nothing(model: DistributedDataParallel, parameters: list[torch.nn.Parameter]) -> Iterator[None]:
    """Leaves DDP on CPUs alone in a group of one rank: an all-reduce of the whole model over gloo would take seconds,
    and add up zeros."""
    group = model.process_group
    if any(parameter.device.type != "cpu" for parameter in parameters):
        yield
        return
    alone = dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
    model.reducer._update_process_group(alone)
    try:
        yield
    finally:
        model.reducer._update_process_group(group)
        dist.destroy_process_group(alone)
