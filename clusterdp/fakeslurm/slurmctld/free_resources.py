"""What nobody has of the nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusterdp.fakeslurm.core.model import Model, Node, Share


@dataclass(frozen=True)
class FreeNode:
    """What nobody has of a node; `index` is its place in the cluster."""

    node: Node
    cpu_ids: tuple[int, ...]
    gpus: tuple[int, ...]
    index: int

    @property
    def whole(self) -> bool:
        return len(self.cpu_ids) == self.node.cpus

    def less(self, share: Share) -> FreeNode:
        return replace(
            self,
            cpu_ids=tuple(i for i in self.cpu_ids if i not in share.cpu_ids),
            gpus=tuple(i for i in self.gpus if i not in share.gpus),
        )

    def more(self, share: Share) -> FreeNode:
        return replace(
            self,
            cpu_ids=tuple(sorted({*self.cpu_ids, *share.cpu_ids})),
            gpus=tuple(sorted({*self.gpus, *share.gpus})),
        )


def free_nodes(model: Model) -> dict[str, FreeNode]:
    free = all_free(model)
    for job in model.holding():
        for share in job.shares:
            if share.node in free:
                free[share.node] = free[share.node].less(share)
    return free


def all_free(model: Model) -> dict[str, FreeNode]:
    """The cluster as if nothing ran and every node were well: what could ever be had."""
    return {
        name: FreeNode(node, tuple(range(node.cpus)), tuple(range(node.gpus)), index)
        for index, (name, node) in enumerate(model.nodes.items())
    }
