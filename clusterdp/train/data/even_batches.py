"""even_batches: gives every rank the same number of items, for work in which all ranks must take part.

    for batch, mine in loop.watch(even_batches(batches, job.group)):
        outputs = model(batch)              # FSDP2: all ranks together gather the weights
        if mine:
            ...                             # count it

A model in DDP does not need even_batches(): its bare module, without DDP, can be evaluated on any number of items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from clusterdp.errors import TrainError
from clusterdp.train.argument_names import checked
from clusterdp.train.parallel.strategy import is_sharded

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group

Item = TypeVar("Item")
END: Any = object()


@checked
def even_batches(items: Iterable[Item], group: Group) -> Iterator[tuple[Item, bool]]:
    """Yields (item, True) for each item. A rank whose items have ended gets (its last item, False) until all ranks are
    done. Collective. Raises TrainError on all ranks if a rank has no item at all."""
    last = END
    for item in _until_all_are_through(items, group):
        if group.agree(int(item is END and last is END))[0]:
            raise TrainError(_none(group, here=item is not END))
        last, mine = (item, True) if item is not END else (last, False)
        yield last, mine


def same_number(items: Iterable[Item], group: Group, state: Mapping[str, Any]) -> Iterable[Item]:
    """Returns the items unchanged, after a check if a module of the state is sharded. The check is collective.
    TrainError is raised on all ranks if the ranks have different numbers of items, because a rank with more items would
    wait in the middle of the model."""
    if any(isinstance(part, nn.Module) and is_sharded(part) for part in state.values()):
        return _checked(items, group)
    return items


def _checked(items: Iterable[Item], group: Group) -> Iterator[Item]:
    for done, item in enumerate(_until_all_are_through(items, group)):
        if group.agree(int(item is END))[0]:
            short = group.gather(item is END)
            raise TrainError(
                f"loop.watch: rank {short.index(True)} has {done} items, and rank {short.index(False)} more, but a "
                "model that is sharded (FSDP2) runs on all ranks together. Give all the same number, or iterate over "
                "even_batches(items, job.group), which fills up."
            )
        yield item


def _until_all_are_through(items: Iterable[Item], group: Group) -> Iterator[Item]:
    """Yields the items, and then END for as long as another rank still has items."""
    iterator = iter(items)
    while True:
        item = next(iterator, END)
        if not group.agree(int(item is not END))[0]:
            return
        yield item


def _none(group: Group, *, here: bool) -> str:
    rank = group.gather(here).index(False)
    return (
        f"rank {rank} has nothing to evaluate, and a model that is sharded (FSDP2) runs on all ranks together. "
        "Use more data, smaller batches or fewer ranks."
    )
