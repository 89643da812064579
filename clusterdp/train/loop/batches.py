"""Batches: the batches of a loader, epoch by epoch, from the position of the training on.

What keeps the position in a loader, in the order in which it is looked for:

    its ResumableSampler   in samples of the global order: O(1) to resume, exact on any number of ranks
    the loader             state_dict() and load_state_dict(), as torchdata's StatefulDataLoader has them: each rank's
                           own, asked between two batches of the loop. When it has ended, its state begins an epoch.
    its data set           state_dict(num_samples, from_beginning), as Mosaic's StreamingDataset has it: of all ranks
    nothing                batches are counted, and on resume read again and dropped; the log says how long that took.
                           It draws from random streams of its own (OwnStreams), and must be the same loader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import TensorDataset

from clusterdp.errors import ConfigError, StateError
from clusterdp.train.data.loader_defaults import end_workers
from clusterdp.train.data.loader_identity import batch_size_of, changes, length_of, same_place, why_not_exact
from clusterdp.train.data.loader_rng import OwnStreams
from clusterdp.train.data.prefetch import Prefetcher
from clusterdp.train.data.sampler import ResumableSampler
from clusterdp.train.data.seeded import SeededDataset
from clusterdp.train.data.tensor_loader import TensorLoader
from clusterdp.train.dist.rank import Rank
from clusterdp.train.loop.position import EpochRng, LoaderState, Position, counts_samples
from clusterdp.train.output.say import say
from clusterdp.wording import counted

Batch = TypeVar("Batch")
END: Any = object()


class Batches(Generic[Batch]):
    """state: what is saved of the loader, by name. left: batches of this epoch that are not done; None if unknown."""

    def __init__(
        self,
        rank: Rank,
        loader: Iterable[Batch],
        move: bool | Callable[[Any], Any] = False,
        lap: Callable[[str], None] = lambda name: None,
    ):
        """lap: called with the name of what the time since the last call went into; see Stopwatch."""
        self.rank = rank
        self.lap = lap
        self.move = move
        self.loader = loader
        self.batch_size = batch_size_of(loader) or 1  # of a full batch; the last one, shorter, ends the epoch
        self.sampler = _our_sampler(loader)
        self.is_global = self.sampler is not None or counts_samples(getattr(loader, "dataset", None))
        self.position = Position(self.batch_size * rank.world_size if self.is_global else 0)
        self.per_epoch: int | None = None  # batches; None if the loader has no length
        self.left: int | None = None
        self._surplus = False  # this rank has more batches than another
        self._ready: Iterator[Batch] | None = None  # of the epoch that is opened next
        self._epoch_rng = EpochRng(loader)
        self._streams = OwnStreams()
        self._place: LoaderState | None = None
        self.state: dict[str, Any] = {"loop": self.position}
        if self.sampler is not None:
            self.state["sampler"] = self.sampler
            return
        self.state["epoch_rng"] = self._epoch_rng
        if LoaderState.is_kept_by(loader):
            self.state["loader"] = self._place = LoaderState(loader, self.position, rank.world_size)

    def with_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """All that is to be saved."""
        taken = [name for name in self.state if name in state and state[name] is not self.state[name]]
        if taken:
            raise StateError(f"state.{taken[0]}: the loop keeps its own state under this name. Give yours another.")
        return {**state, **self.state}

    def measure(self) -> None:
        """Collective, before anything is restored. An epoch has the least of all ranks' batches: a rank with more would
        wait for the others."""
        length = length_of(self.loader)
        own = -1 if length is None else length
        least = self.rank.group.agree(own, least=True)[0]
        self._surplus = least < own
        if self._surplus:
            number = self.rank.number
            say(f"clusterdp: rank {number} has {own} batches, another rank only {least}; {own - least} dropped.")
        self.per_epoch = least if least >= 0 else None

    def say_share(self, what: str = "") -> None:
        """Each rank its own, after measure(). Nothing if the loader has no length. what: a phase with a name."""
        if self.per_epoch is None:
            return
        size = batch_size_of(self.loader)
        steps = counted(self.per_epoch, "step") + (f" of {counted(size, 'sample')}" if size else "")
        shared = ""
        if self.sampler is not None:
            ranks = self.rank.world_size
            all_samples = counted(self.sampler.size, "sample")
            shared = f"; the {all_samples} are shared by {ranks} ranks" if ranks > 1 else f", {all_samples} in all"
        what = f"{what}: " if what else ""
        say(f"clusterdp: {what}rank {self.rank.number} has {steps} in an epoch{shared}")

    def resumed(self, same_ranks: bool) -> str | None:
        """Logs what differs since the checkpoint: the number of ranks (not `same_ranks`) or the loader. Returns why the
        next batches are not the ones that would have come; None if no reason is known."""
        place = self.position
        if place.last is not None and self.rank.is_first:
            say(
                f"clusterdp: the training was ended early, after epoch {place.last} of {place.epochs}: more epochs "
                f"than {place.epochs} go on from there."
            )
        was, now = place.saved_global_batch, place.global_batch
        if was != now and self.is_global:
            ours = f" {was // self.rank.world_size} a rank would keep it." if was % self.rank.world_size == 0 else ""
            self._say(f"the global batch was {was} samples and is {now}: same order, but other steps.{ours}")
        if not same_ranks and not self.is_global:
            self._say("each rank knew its own place, and the ranks are others now: the order of samples is not exact.")
        if same_ranks and self.sampler is None:
            self._check_same_loader()
        begun = place.batch > 0 and not place.ended
        replayed = self.sampler is None and self._place is None
        why = why_not_exact(self.loader, begun=begun, epoch=place.epoch + place.ended, replayed=replayed)
        if place.finished:
            return None
        if why is not None:
            self._say(why)
        return why

    def _check_same_loader(self) -> None:
        """StateError if the batches that the checkpoint has counted are not those of this loader."""
        place, was, now = self.position, self._epoch_rng.saved_facts, self._epoch_rng.facts
        changed = ", ".join(changes(was, now))
        if not changed:
            return
        if self._place is None and place.batch and not place.ended:
            batch = same_place(was, now, self.loader, place.batch)
            if batch is None:
                raise StateError(
                    f"loader: it has changed since the checkpoint: {changed}. {place.batch} batches of epoch "
                    f"{place.epoch} were counted, and which samples those are now is not known. Resume with the loader "
                    "as it was; at the end of an epoch it may change. To train on with another one, export the "
                    "checkpoint (clusterdp checkpoint export), and begin a new run with checkpoint.start_from."
                )
            place.batch = batch
        self._say(f"it has changed since the checkpoint: {changed}. The run goes on with it.")

    def rest(self) -> int | None:
        """Batches from the position to the end of the epoch."""
        if self.per_epoch is None:
            return None
        if self.position.ended:
            return 0
        # From the sampler: a run that resumes with another number of ranks has been counting other batches.
        return len(self.loader) if self.sampler else max(0, self.per_epoch - self.position.batch)  # type: ignore[arg-type]

    def open(self) -> Iterator[Batch]:
        """The rest of the epoch. When it returns, the loader's iterator exists and has found its place.

        The caller restores the random numbers then, for all of that draws from them.
        """
        self._tell_epoch()
        self.left = self.rest()
        if self.position.ended:
            self._pass_end()
            return iter(())
        return self._moved(self._found())

    def _moved(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        if self.move is False or (self.rank.device.type == "cpu" and self.move is True):
            return batches
        # Only where the place is counted by what is done, and where fetching draws no random numbers that are saved.
        seeded = isinstance(getattr(self.loader, "dataset", None), SeededDataset | TensorDataset)
        seeded = seeded or isinstance(self.loader, TensorLoader)
        counted = self.sampler is not None and not self._surplus
        ahead = counted and (seeded or getattr(self.loader, "num_workers", 0) > 0)
        transform = None if self.move is True else self.move
        return iter(Prefetcher(batches, self.rank.device, transform=transform, ahead=ahead, lap=self.lap))

    def _found(self) -> Iterator[Batch]:
        """An iterator that begins at the position."""
        if self.sampler is not None:
            return self._batches(self._iterator())
        if self.position.batch:
            self._epoch_rng.rewind()
        else:
            self._epoch_rng.note()
        iterator = self._iterator()
        self._streams.end()
        if self._place is None and self._epoch_rng.apart and not isinstance(self.loader, Sequence):
            self._streams.begin()
        if self._place is None or not self._place.restored:
            self._skip(iterator, self.position.batch)
        return self._batches(iterator)

    def _pass_end(self) -> None:
        """The checkpoint is of an epoch that had ended: moves on, so that the next epoch opens as it would have."""
        self._epoch_rng.forward()
        if self._place is None:
            return
        iterator = self._iterator()
        if self.is_global:
            self._drop(iterator)  # Mosaic takes up the epoch at its end, and no other before that
        elif getattr(self.loader, "persistent_workers", False):
            self._ready = iterator
        else:
            # torchdata makes two iterators of the state of an end, of which the first is over. Each draws from the
            # random numbers, and only one has done so in the uninterrupted run; so both are made here.
            self._place.load_state_dict(self._place.state_dict())

    def pass_all(self) -> None:
        """The checkpoint is of the end of all epochs: puts what the next loop may share where this one left it."""
        if self.position.batch:
            return
        self._epoch_rng.forward()
        if self._place is not None and not self.is_global:
            self._place.load_state_dict(self._place.state_dict())

    def advance(self) -> None:
        """The loop is done with a batch."""
        self.position.advance()
        if self.left is not None:
            self.left -= 1
        if self.sampler is not None:
            self.sampler.advance(self.batch_size)

    @property
    def mean_size(self) -> float:
        """Samples of one rank to a batch, on average: the last batch of an epoch is shorter."""
        if self.sampler is None or not self.per_epoch:
            return float(self.batch_size)
        return min(float(self.batch_size), self.sampler.size / self.sampler.world_size / self.per_epoch)

    def close(self) -> None:
        end_workers(self.loader)

    def _batches(self, iterator: Iterator[Batch]) -> Iterator[Batch]:
        unmeasured = self.per_epoch is None and self.rank.world_size > 1
        empty = self.position.batch == 0
        while not (self._surplus and self.left == 0):
            with self._streams:
                batch = next(iterator, END)
            here = batch is not END
            # Without lengths it is not known which rank ends first, and one with more would wait: all ask each time.
            if unmeasured:
                here = bool(self.rank.group.agree(int(here), least=True)[0])
            if not here:
                break
            empty = False
            yield batch
        if empty:  # on all ranks alike
            raise ConfigError(
                f"loader: epoch {self.position.epoch + 1} has no batch. Give it data; an iterator that has been read "
                "is through, so pass what can be read again."
            )
        if self._place is not None:
            self._drop(iterator)  # so that its state, too, is that of an end
        self.position.ended = True

    def _iterator(self) -> Iterator[Batch]:
        generator = getattr(self.loader, "generator", None)
        if self.sampler is not None and isinstance(generator, torch.Generator):
            # Nothing but the workers' seeds comes from it: the same in this epoch, whichever attempt gets there.
            generator.manual_seed(self.rank.seed + self.rank.number + 1_000_003 * self.position.epoch)
        ready, self._ready = self._ready, None
        with self.rank.stop.shielded():
            return iter(self.loader) if ready is None else ready

    def _tell_epoch(self) -> None:
        loader = self.loader
        for part in (loader, *(getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset"))):
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(self.position.epoch)

    def _skip(self, iterator: Iterator[Batch], batches: int) -> None:
        if not batches:
            return
        began = time.monotonic()
        with self._streams:
            for _ in islice(iterator, batches):
                pass
        self._say(
            f"it has no state to resume from: {batches} batches of epoch {self.position.epoch} were read again and "
            f"dropped, in {time.monotonic() - began:.1f} s. job.loader() would not read them."
        )

    @staticmethod
    def _drop(iterator: Iterator[Batch]) -> None:
        for _ in iterator:
            pass

    def _say(self, what: str) -> None:
        if self.rank.is_first:
            say(f"clusterdp: loader: {what}")


def _our_sampler(loader: Any) -> ResumableSampler | None:
    for holder in (loader, getattr(loader, "batch_sampler", None)):
        if isinstance(sampler := getattr(holder, "sampler", None), ResumableSampler):
            return sampler
    return None
