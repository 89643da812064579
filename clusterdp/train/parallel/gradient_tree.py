"""GradientTree: sums of gradients that have the same bits on any number of ranks (train.exact: any_ranks).

Sums of floating-point numbers depend on their order, and DDP's order depends on the ranks. Here the order is that of a
binary tree, whose leaves are the gradients of a step's micro-batches:

              +
          +       +         5 leaves on 2 ranks: rank 0 has leaves 0, 1 and 2, and sends the nodes 0 + 1 and 2;
        +   +   +           rank 1 sends 3 and 4. Each rank adds up its slice of the gradient: ((0 + 1) + (2 + 3)) + 4
       0 1 2 3 4

A rank keeps the sums of its own leaves, at most one for each level of the tree. Its last backward pass runs under DDP,
whose communication hook sends the nodes of a bucket, to each rank its slice, while the pass goes on. At the end of the
pass, each rank adds up its slices, and all ranks exchange the sums. Each byte is sent as often as by an all-reduce of
the nodes of a rank: one node if the number of ranks is a power of two, as that of the leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clusterdp.errors import ConfigError, TrainError
from clusterdp.train.parallel.gradient_mean import mean_of
from clusterdp.train.parallel.running_statistics import RunningStatistics
from clusterdp.train.parallel.syncbn import GlooBatchNorm
from clusterdp.wording import some_of

KEY = "train.exact: any_ranks"
TAGS = 1 << 20  # of the messages of a model, which no other model uses

_trees: WeakKeyDictionary[DistributedDataParallel, GradientTree] = WeakKeyDictionary()  # DDP takes one hook


class Node(NamedTuple):
    """The sum of the leaves from number * 2**level on, 2**level of them or as many as the step has."""

    level: int
    number: int

    @property
    def parent(self) -> Node:
        return Node(self.level + 1, self.number // 2)

    def is_left_of(self, other: Node) -> bool:
        """Returns whether both have the same parent, and this one comes first."""
        return self.level == other.level and self.number % 2 == 0 and self.number + 1 == other.number


def cover(leaves: Iterable[int]) -> list[Node]:
    """Returns the largest nodes that have these consecutive leaves only, in order."""
    nodes: list[Node] = []
    for leaf in leaves:
        node = Node(0, leaf)
        while nodes and nodes[-1].is_left_of(node):
            node = nodes.pop().parent
        nodes.append(node)
    return nodes


def add_up(parts: Iterable[tuple[Node, torch.Tensor]]) -> torch.Tensor:
    """Returns the sum of nodes that have all leaves of a step, given in order. Works in the memory of the parts."""
    kept: list[tuple[Node, torch.Tensor]] = []
    for node, part in parts:
        while kept and kept[-1][0].is_left_of(node):
            before, left = kept.pop()
            node, part = before.parent, left.add_(part)
        kept.append((node, part))
    total = kept.pop()[1]
    while kept:  # where a right child is missing, its place is taken by what comes next on the left
        total = kept.pop()[1].add_(total)
    return total


@dataclass
class _Bucket:
    """A bucket of DDP on its way. parts: the nodes of all ranks, in order, each with this rank's slice of it."""

    flat: torch.Tensor
    parts: list[tuple[Node, torch.Tensor]]
    works: list[Any]
    future: Any = field(default_factory=torch.futures.Future)


class GradientTree:
    """The sums of one model's gradients. All ranks make the same calls in the same order."""

    def __init__(self, model: DistributedDataParallel, parameters: dict[str, nn.Parameter], number: int):
        """number: of the model among those of the loop."""
        self._names, self._parameters = [*parameters], [*parameters.values()]
        self._place = {id(parameter): place for place, parameter in enumerate(self._parameters)}
        self._group = model.process_group
        self._rank, self._ranks = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._first_tag = number * TAGS
        self._statistics = RunningStatistics(model.module, self._group)
        self._covers: list[list[Node]] | None = None  # of all ranks; None outside of the passes of a step
        self._node: Node | None = None  # the sum of what the parameters hold as gradients
        self._kept: list[tuple[Node, list[torch.Tensor]]] = []  # sums of earlier leaves of this rank
        self._buckets: list[_Bucket] = []
        self._memory: dict[Any, torch.Tensor] = {}  # new memory in each step would take longer than the messages

    @classmethod
    def of(cls, model: DistributedDataParallel, parameters: dict[str, nn.Parameter], number: int) -> GradientTree:
        """Returns the tree of a model, which is attached to it at the first call. parameters: those whose gradients
        DDP exchanges, by name. Raises ConfigError on all ranks if the model cannot have one."""
        if model not in _trees:
            _check(model)
            tree = _trees[model] = cls(model, parameters, number)
            model.register_comm_hook(None, lambda _, bucket: tree.send(bucket))
        return _trees[model]

    def begin_step(self, leaves: Sequence[range]) -> None:
        """leaves: the numbers of each rank's micro-batches."""
        self._covers = [cover(own) for own in leaves]
        self._node, self._kept, self._buckets = None, [], []
        for parameter in self._parameters:  # of a program that sets them to zero instead
            parameter.grad = None
        self._statistics.begin_step([*map(len, leaves)])

    def begin_pass(self, leaf: int) -> None:
        """leaf: the number of the pass's micro-batch."""
        self._statistics.begin_pass()
        following = Node(0, leaf)
        if self._node is None:
            self._node = following
        elif self._node.is_left_of(following):
            self._node = self._node.parent  # autograd adds the next gradient where this one lies
        else:
            self._keep(self._node)
            self._node = following

    def _keep(self, node: Node) -> None:
        """Keeps the gradients that the parameters hold, and takes them from there."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if not gradients:
            raise TrainError(
                "model: its gradients were cleared within a step. Let the optimizer step, and clear them, if "
                "loop.window_ends."
            )
        if len(gradients) < len(self._parameters):
            unused = [name for name, p in zip(self._names, self._parameters, strict=True) if p.grad is None]
            raise TrainError(
                f"model: in a micro-batch these parameters had no part in the loss: {some_of(unused)}. Use them, "
                f"freeze them with requires_grad_(False), or leave out {KEY}."
            )
        for parameter in self._parameters:
            parameter.grad = None
        while self._kept and self._kept[-1][0].is_left_of(node):
            left, sums = self._kept.pop()
            torch._foreach_add_(sums, gradients)
            node, gradients = left.parent, sums
        self._kept.append((node, gradients))

    def send(self, bucket: Any) -> Any:
        """Adds up this rank's nodes of a dist.GradBucket, and sends their slices. Called by DDP, in the last backward
        pass of a step. Returns a future of the sums."""
        if self._covers is None:
            raise TrainError(
                f"model: more than one backward pass in a micro-batch, or one outside of the loop. With {KEY}, add the "
                "losses of a micro-batch up, and call backward() once; or leave it out."
            )
        if not self._buckets:
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        flat, number = bucket.buffer(), bucket.index()
        nodes = self._nodes_of(bucket) if self._covers[self._rank] else []
        own, parts, messages = self._slice(flat, self._rank), list[tuple[Node, torch.Tensor]](), list[dist.P2POp]()
        for peer, those in enumerate(self._covers):
            if peer == self._rank:
                parts += [(node, self._slice(sums, peer)) for node, sums in nodes]
                continue
            arriving = self._room((number, peer), len(those) * own.numel(), flat).view(len(those), own.numel())
            parts += zip(those, arriving, strict=True)
            messages += self._messages(dist.isend, [self._slice(sums, peer) for _, sums in nodes], peer, 2 * number)
            messages += self._messages(dist.irecv, arriving, peer, 2 * number)
        self._buckets.append(_Bucket(flat, parts, self._start(messages)))
        return self._buckets[-1].future

    def _nodes_of(self, bucket: Any) -> list[tuple[Node, torch.Tensor]]:
        """Returns this rank's nodes. The last one is in the bucket's own memory."""
        node, kept, gradients = self._node, [*self._kept], bucket.gradients()
        assert node is not None
        places = [self._place[id(parameter)] for parameter in bucket.parameters()]
        while kept and kept[-1][0].is_left_of(node):
            left, sums = kept.pop()
            torch._foreach_add_(gradients, [sums[place] for place in places])
            node = left.parent
        flat, nodes = bucket.buffer(), list[tuple[Node, torch.Tensor]]()
        for level, (before, sums) in enumerate(kept):
            room = self._room((bucket.index(), "own", level), flat.numel(), flat)
            nodes.append((before, torch.cat([sums[place].reshape(-1) for place in places], out=room)))
        return [*nodes, (node, flat)]

    def _end(self) -> None:
        """Adds up the slices, and exchanges the sums. Called at the end of the last backward pass. Collective."""
        buckets, self._buckets, self._kept, self._covers = self._buckets, [], [], None
        for number, bucket in enumerate(buckets):
            for work in bucket.works:
                work.wait()
            own, messages = self._slice(bucket.flat, self._rank), list[dist.P2POp]()
            if (total := add_up(bucket.parts)).data_ptr() != own.data_ptr():
                own.copy_(total)
            for peer in range(self._ranks):
                if peer != self._rank:
                    messages += self._messages(dist.isend, [own], peer, 2 * number + 1)
                    messages += self._messages(dist.irecv, [self._slice(bucket.flat, peer)], peer, 2 * number + 1)
            bucket.works = self._start(messages)
        for bucket in buckets:
            for work in bucket.works:
                work.wait()
            bucket.future.set_result(bucket.flat)
        self._statistics.end_step()

    def _slice(self, flat: torch.Tensor, rank: int) -> torch.Tensor:
        size = -(-flat.numel() // self._ranks)
        return flat[rank * size : (rank + 1) * size]

    def _room(self, name: Any, size: int, like: torch.Tensor) -> torch.Tensor:
        """Returns memory that is the same one in each step."""
        room = self._memory.get(name)
        if room is None or room.numel() < size:
            room = self._memory[name] = like.new_empty(size)
        return room[:size]

    def _messages(self, how: Any, parts: Iterable[torch.Tensor], peer: int, number: int) -> list[dist.P2POp]:
        tags = range(self._first_tag + number * 64, self._first_tag + TAGS)  # a rank sends fewer than 64 nodes
        some = [(part, tag) for part, tag in zip(parts, tags, strict=False) if part.numel()]
        return [dist.P2POp(how, part, peer, self._group, tag) for part, tag in some]

    @staticmethod
    def _start(messages: list[dist.P2POp]) -> list[Any]:
        return dist.batch_isend_irecv(messages) if messages else []


def check_trained(optimizers: Iterable[torch.optim.Optimizer], summed: Iterable[nn.Parameter]) -> None:
    """Raises ConfigError if an optimizer has a parameter whose gradients no tree adds up."""
    known = {id(parameter) for parameter in summed}
    for optimizer in optimizers:
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if parameter.requires_grad and id(getattr(parameter, "master_of", parameter)) not in known:
                raise ConfigError(
                    f"{KEY}: an optimizer has parameters of shape {tuple(parameter.shape)} that are not in a model of "
                    "job.wrap(), which adds up its gradients. Wrap the model, also on one rank, or leave it out."
                )


def _check(model: DistributedDataParallel) -> None:
    on_gpu = any(parameter.device.type != "cpu" for parameter in model.parameters())
    whole = dist.get_world_size(model.process_group) == dist.get_world_size()
    refused = {
        "find_unused_parameters": model.find_unused_parameters,
        "static_graph": model.static_graph,
        "a communication hook of its own": bool(model._comm_hooks),
        "SyncBatchNorm": any(isinstance(each, nn.SyncBatchNorm | GlooBatchNorm) for each in model.modules()),
        "parts that are called one by one": mean_of(model) is not None,
        "a process group of some ranks": not whole,
        "gloo between GPUs": on_gpu and dist.get_world_size() > 1 and "nccl" not in str(dist.get_backend()),
    }
    if found := [name for name, is_there in refused.items() if is_there]:
        raise ConfigError(
            f"{KEY}: does not go with {found[0]}, which the model has. Leave one of the two out; losses are the same "
            "but for rounding without it."
        )
