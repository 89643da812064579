"""Wire: what passes between a parameter server and its workers: a knock that says what is wanted, then one buffer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from clusterdp.recipes.by_hand import pack, unpack

SERVER = 0  # its rank
PULL, PUSH = 0, 1
KNOCK, DELIVER = 1, 2  # tags


class Wire:
    """Made on all ranks at once. It has a group of its own, over gloo: NCCL cannot receive from whoever comes first."""

    def __init__(self, model: nn.Module):
        self.parameters = list(model.parameters())
        self.group = dist.new_group(backend="gloo")

    def pull(self) -> None:
        """A worker's: the server's weights, as they are now."""
        self._knock(PULL)
        self._take(SERVER, self.parameters)

    def push(self, loss: torch.Tensor) -> None:
        """A worker's: the gradients, and the loss for the record. Returns when the server has them."""
        self._knock(PUSH)
        self._give(SERVER, [*self._gradients(), loss.detach()])

    def wait(self) -> tuple[int, int]:
        """The server's: PULL or PUSH, and the worker who asks."""
        word = torch.empty(1, dtype=torch.int64)
        worker = dist.recv(word, group=self.group, tag=KNOCK)
        return int(word), worker

    def give_weights(self, worker: int) -> None:
        self._give(worker, self.parameters)

    def take_gradients(self, worker: int) -> torch.Tensor:
        """As they came: where they are applied, unpack_gradients() puts them into the parameters' .grad."""
        flat = torch.empty(1 + sum(p.numel() for p in self.parameters))
        dist.recv(flat, src=worker, group=self.group, tag=DELIVER)
        return flat

    def unpack_gradients(self, flat: torch.Tensor) -> float:
        """Returns the loss."""
        loss = torch.empty(())
        unpack(flat, [*self._gradients(), loss])
        return float(loss)

    def _gradients(self) -> list[torch.Tensor]:
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def _knock(self, word: int) -> None:
        dist.send(torch.tensor([word]), dst=SERVER, group=self.group, tag=KNOCK)

    def _give(self, rank: int, tensors: Sequence[torch.Tensor]) -> None:
        flat = pack([tensor.detach() for tensor in tensors]).cpu()
        dist.send(flat, dst=rank, group=self.group, tag=DELIVER)

    def _take(self, rank: int, tensors: Sequence[torch.Tensor]) -> None:
        flat = torch.empty(sum(tensor.numel() for tensor in tensors))
        dist.recv(flat, src=rank, group=self.group, tag=DELIVER)
        unpack(flat, tensors)
