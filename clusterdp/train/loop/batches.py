"""Batches: the batches of a loader, epoch by epoch, from the position of the training on.

The position in a loader is kept by the first of these that exists:

    its ResumableSampler   in samples of the global order: O(1) to resume, exact on any number of ranks
    the loader             state_dict() and load_state_dict(), as in torchdata's StatefulDataLoader: one state per rank,
                           read between two batches of the loop. The state of an ended loader begins an epoch.
    its data set           state_dict(num_samples, from_beginning), as in Mosaic's StreamingDataset: for all ranks
    nothing                batches are counted, and on resume read again and dropped; the log has the seconds. The
                           loader draws from random streams of its own (OwnStreams), and must be the same.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import Dataset, Sampler, TensorDataset

from clusterdp.checkpoint.state import rng
from clusterdp.checkpoint.state.generators import reached
from clusterdp.errors import ConfigError, StateError
from clusterdp.train.data.batch_mark import LastBatch, mark_of
from clusterdp.train.data.dealt_out import is_whole, of_batch, of_data_set
from clusterdp.train.data.loader_defaults import end_workers
from clusterdp.train.data.loader_identity import batch_size_of, changes, length_of, same_place, why_not_exact
from clusterdp.train.data.prefetch import Prefetcher
from clusterdp.train.data.resumable_loader import batches_left, our_sampler
from clusterdp.train.data.sampler import draw_order
from clusterdp.train.data.seeded import SeededDataset
from clusterdp.train.data.streams import OwnStreams
from clusterdp.train.data.tensor_loader import TensorLoader
from clusterdp.train.loop.position import EpochRng, LoaderState, Position, counts_samples
from clusterdp.train.output.say import say
from clusterdp.train.ranks.rank import Rank
from clusterdp.wording import counted

Batch = TypeVar("Batch")
END: Any = object()


class Batches(Generic[Batch]):
    """state: the saved state of the loader, by name. left: batches of this epoch that are not done; None if unknown."""

    def __init__(
        self,
        rank: Rank,
        loader: Iterable[Batch],
        move: bool | Callable[[Any], Any] = False,
        lap: Callable[[str], None] = lambda name: None,
        *,
        limit: int | None = None,
    ):
        """lap: a function that is called with a name for the work since the last call; see Stopwatch. limit: the most
        batches of an epoch."""
        self.rank, self.loader, self.move, self.lap, self.limit = rank, loader, move, lap, limit
        self.batch_size = batch_size_of(loader) or 1  # samples in a full batch; the epoch's last batch may be shorter
        self.sampler = our_sampler(loader)
        self.is_global = self.sampler is not None or counts_samples(getattr(loader, "dataset", None))
        self.position = Position(self.batch_size * rank.world_size if self.is_global else 0)
        self.per_epoch: int | None = None  # batches per epoch; None if the loader has no length
        self.left: int | None = None
        self.opened: Iterator[Batch] | None = None  # the rest of the epoch; None if the program has left it
        self._compared = self.is_global or rank.world_size == 1  # whether the ranks' batches need no check for equality
        self._surplus = False  # whether this rank has more batches than it gives: than another rank, or than the limit
        self._read = False  # whether this process has read an epoch of the loader
        self._epoch_rng = EpochRng(loader, self.position)
        self._streams = OwnStreams()
        self._draws = False  # whether a resume reads the loader again, which may then draw other random numbers
        self.differs: str | None = None  # a message, if the loader has drawn other random numbers
        self._place: LoaderState | None = None
        self.state: dict[str, Any] = {"loop": self.position}
        if self.sampler is not None:
            self.state["sampler"] = self.sampler
            return
        self.state["epoch_rng"] = self._epoch_rng
        if LoaderState.is_kept_by(loader):
            if limit is not None:  # the rest of the epoch would be read, so that the loader's state is at its end
                raise ConfigError(
                    "limit_batches: the loader has a position of its own. Give it less data, or max_steps."
                )
            self.state["loader"] = self._place = LoaderState(loader, self.position, rank.world_size)

    def with_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all state to save: the user's and the loop's."""
        taken = [name for name in self.state if name in state and state[name] is not self.state[name]]
        if taken:
            raise StateError(f"state.{taken[0]}: the loop keeps its own state under this name. Give yours another.")
        return {**state, **self.state}

    def measure(self) -> None:
        """Sets per_epoch to the least number of batches of all ranks, because a rank with more batches would wait for
        the others. measure() is collective, and is called before anything is restored."""
        if self.sampler is not None and self.position.step == 0:
            self.sampler.consumed = 0  # an earlier loop may have read it
        length = length_of(self.loader)
        own = -1 if length is None else length
        least = self.rank.group.agree(own, least=True)[0]
        self._surplus = least < own
        if self._surplus:
            number = self.rank.number
            say(f"clusterdp: rank {number} has {own} batches, another rank only {least}; {own - least} dropped.")
        if self.limit is not None and least > self.limit:
            least, self._surplus = self.limit, True
        self.per_epoch = least if least >= 0 else None
        if not self._compared:
            self._compare(of_data_set(self.loader))

    def _compare(self, here: str | None) -> None:
        """Prints a warning if `here` is the same on all ranks. Collective, until the warning is printed."""
        each = self.rank.group.gather(here)
        if each[0] is None or any(other != each[0] for other in each):
            return
        self._compared = True
        self._say(
            f"each of the {self.rank.world_size} ranks trains on all samples, since this "
            f"{type(self.loader).__name__} gives every rank the same. job.loader(data, batch_size) deals them out; so "
            "does a DistributedSampler, or an iterable that takes every job.world_size-th batch from job.rank on."
        )

    def say_share(self, what: str = "", accumulate: int = 1) -> None:
        """Prints this rank's share of the batches, after measure(); nothing if the loader has no length. what: the
        phase. accumulate: batches, which are the steps here, for a step of the optimizer."""
        if self.per_epoch is None:
            return
        size = batch_size_of(self.loader)
        steps = counted(self.per_epoch, "step") + (f" of {counted(size, 'sample')}" if size else "")
        shared = ""
        if self.sampler is not None:
            ranks = self.sampler.world_size
            all_samples = counted(self.sampler.size, "sample")
            shared = f"; the {all_samples} are shared by {ranks} ranks" if ranks > 1 else f", {all_samples} in all"
        what = f"{what}: " if what else ""
        shared += f"; the optimizer steps once in {accumulate} of them" if accumulate > 1 else ""
        say(f"clusterdp: {what}rank {self.rank.number} has {steps} in an epoch{shared}")

    def resumed(self, ranks: int) -> list[str]:
        """Logs what has changed since the checkpoint, which `ranks` ranks have saved, or in the loader. Returns why the
        next batches differ from those of an uninterrupted run, if a reason is known."""
        place = self.position
        if place.last is not None and self.rank.is_first:
            known = place.epochs < sys.maxsize
            of, more = (f" of {place.epochs}", f"more epochs than {place.epochs}") if known else ("", "more steps")
            say(f"clusterdp: the training was ended early, after epoch {place.last}{of}: {more} go on from there.")
        place.check_unit()
        same_ranks, shares = ranks == self.rank.world_size, self.rank.world_size * place.accumulate
        was, now = place.saved_global_batch, place.global_batch * place.accumulate
        if was != now and self.is_global:
            ours = f" {was // shares} a rank would keep it." if was % shares == 0 else ""
            self._say(f"the global batch was {was} samples and is {now}: same order, but other steps.{ours}")
        if not same_ranks and not self.is_global and place.batch and not place.ended and not is_whole(self.loader):
            done = place.batch * ranks
            before, place.batch = place.batch, done // self.rank.world_size
            self._say(
                f"each of {ranks} ranks had done {before} batches of epoch {place.epoch}, and each of the "
                f"{self.rank.world_size} goes on after {place.batch}: {done % self.rank.world_size} come again. "
                "With a DistributedSampler no sample is left out; otherwise some may come twice or not at all. "
                "job.loader() gives each once."
            )
        if same_ranks and self.sampler is None:
            self._check_same_loader()
        begun = place.batch > 0 and not place.ended
        replayed = self.sampler is None and self._place is None
        why = why_not_exact(self.loader, begun=begun, epoch=place.epoch + place.ended, replayed=replayed)
        if place.finished or why is None:
            return []
        self._say(why)
        return [f"loader: {why}"]

    def _check_same_loader(self) -> None:
        """Raises StateError if the checkpoint has counted batches of a loader that differs from this one."""
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

    def go_on_from(self, position: Position) -> None:
        """Takes over another loop's position, in memory. If the other loop was left in the middle of an epoch, this
        epoch begins again, also with the same loader."""
        self.position.go_on_from(position)
        if self.sampler is not None and not position.ended:
            self.sampler.consumed = 0

    def rest(self) -> int | None:
        """Returns the number of batches from the position to the end of the epoch."""
        if self.per_epoch is None:
            return None
        if self.position.ended:
            return 0
        # The sampler's count comes first: before a resume with another number of ranks, the run counted batches of
        # another size.
        left, ours = batches_left(self.loader), max(0, self.per_epoch - self.position.batch)
        if self.sampler is not None and self.sampler.epoch != self.position.epoch:
            left = None  # it counts the epoch before until tell_epoch()
        return ours if left is None else left if self.limit is None else min(left, ours)

    def steps_in_all(self, limit: int, steps: int | None) -> int | None:
        """Returns the number of steps of the whole loop; None if it is unknown. limit: the most steps. steps: a number
        of steps from now on, if it is fixed."""
        place, rest, total = self.position, self.rest(), None
        if steps is not None:
            total = place.step + steps
        elif place.finished:
            total = place.step
        elif self.per_epoch is not None and rest is not None:
            total = place.step + rest + self.per_epoch * (place.epochs - place.epoch - 1)
        limit = max(limit, place.step)
        return total if limit == sys.maxsize else limit if total is None else min(total, limit)

    def done(self) -> int:
        """Returns how many batches of this epoch each rank would have finished if the epoch had begun with the
        present number of ranks."""
        rest = self.rest()
        return self.position.batch if rest is None or self.per_epoch is None else self.per_epoch - rest

    def open(self) -> Iterator[Batch]:
        """Returns an iterator over the rest of the epoch. On return, the loader's iterator exists and is at the
        position.

        The caller then restores the random state, because open() draws random numbers.
        """
        self.left = self.rest()
        if self.position.ended:
            self._pass_end()
        self.opened = iter(()) if self.position.ended else self._moved(self._found())
        return self.opened

    def _moved(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        if self.move is False or (self.rank.device.type == "cpu" and self.move is True):
            return batches
        # A batch is fetched ahead only if the position counts finished batches, and if fetching draws from no saved
        # random stream.
        seeded = isinstance(getattr(self.loader, "dataset", None), SeededDataset | TensorDataset)
        seeded = seeded or isinstance(self.loader, TensorLoader)
        counted = self.sampler is not None and not self._surplus
        ahead = counted and (seeded or getattr(self.loader, "num_workers", 0) > 0)
        transform = None if self.move is True else self.move
        return iter(Prefetcher(batches, self.rank.device, transform=transform, ahead=ahead, lap=self.lap))

    def _found(self) -> Iterator[Batch]:
        """Returns an iterator that begins at the position."""
        if self.sampler is not None:
            for exact, what in draw_order(self.sampler, self.rank.group, begun=self.position.batch > 0):
                self._say(what)
                self.differs = self.differs if exact else what
            return self._batches(self._iterator())
        if self.position.batch:
            self._epoch_rng.rewind()
        else:
            self._pass_end()  # has an effect if the checkpoint was saved between two epochs
            self._epoch_rng.note()
        iterator: Any = self._iterator()
        self._streams.end()
        self._draws = self._place is None and not isinstance(self.loader, Sequence)
        if self._draws and self._epoch_rng.apart:
            self._streams.begin()
        if self._place is not None:
            self._place.pending = False
        if self._place is None or not self._place.restored:
            self._skip(iterator, self.position.batch)
        elif isinstance(ahead := getattr(iterator, "_sampler_iter", None), islice) and not iterator._num_workers:
            # torchdata skips batches when the next one is read: too late for _forward(). A RandomSampler draws at its
            # end, too: just the skipped ones are read here.
            (order,) = gc.get_referents(ahead)
            self._drop(islice(order, iterator._sampler_iter_yielded))
            iterator._sampler_iter = order
        self._forward()
        return self._batches(iterator)

    def _pass_end(self) -> None:
        """Skips an epoch that had ended before the save, so that the next epoch begins as in an uninterrupted run."""
        place = self._place
        if place is not None and place.pending:
            if not self.is_global:
                place.pass_end()
            elif self.position.ended or self.position.epoch:
                self._drop(self._iterator())  # Mosaic resumes at the end of this epoch, and must end it
            place.pending = False
        self._forward()

    def _forward(self) -> None:
        """Sets the loader's own generators to their states at the save."""
        if missing := self._epoch_rng.forward():
            self.differs = (
                f"it has no generator {', '.join(missing)} yet, which the checkpoint has: what it draws is not exact. "
                "Make the generator where its holder is made."
            )
            self._say(self.differs)

    @property
    def can_be_left(self) -> bool:
        """Whether an epoch that the program leaves may count as ended; False if the loader keeps its own position."""
        return self._place is None

    def pass_all(self) -> None:
        """At the end of all epochs, restores the states of the generators and the loader, because the next loop may use
        both."""
        if not self.position.batch:
            self._pass_end()

    def note_end(self) -> dict[str, Any]:
        """Notes the loader's generators before the code after the epoch. Returns the state of the global streams."""
        if self.sampler is None:
            self._epoch_rng.note_end()
        return rng.capture()

    def advance(self) -> None:
        """Counts a finished batch."""
        self.position.advance()
        if self.left is not None:
            self.left -= 1
        if self.sampler is not None:
            self.sampler.advance(self.batch_size)

    @property
    def mean_size(self) -> float:
        """Average number of samples in a batch of one rank: the last batch of an epoch is shorter."""
        if self.sampler is None or not self.per_epoch:
            return float(self.batch_size)
        return min(float(self.batch_size), self.sampler.size / self.sampler.world_size / self.per_epoch)

    def close(self) -> None:
        end_workers(self.loader)
        if self._place is not None:
            self._place.forget()

    def _batches(self, iterator: Iterator[Batch]) -> Iterator[Batch]:
        unmeasured = self.per_epoch is None and self.rank.world_size > 1
        empty = self.position.batch == 0
        if not self._compared and self.left != 0:  # this condition is equal on all ranks
            with self._streams:
                first = [*islice(iterator, 1)]
            self._compare(of_batch(first))
            self._compared = True
            iterator = chain(first, iterator)
        limit, position = self.limit or sys.maxsize, self.position
        while position.batch < limit and not (self._surplus and self.left == 0):
            with self._streams:
                batch = next(iterator, END)
            here = batch is not END
            # Without lengths, any rank may end first, and a rank with more batches would wait. Therefore the ranks
            # agree before each batch.
            if unmeasured:
                here = bool(self.rank.group.agree(int(here), least=True)[0])
            if not here:
                break
            empty = False
            if self._draws:
                self._epoch_rng.last = LastBatch(batch)
            yield batch
        if empty:  # this condition is equal on all ranks
            raise ConfigError(
                f"loader: epoch {self.position.epoch + 1} has no batch. Give it data; an iterator that has been read "
                "is through, so pass what can be read again."
            )
        if self._place is not None:
            self._drop(iterator)  # the rest is read, so that the loader's state is at the end, too
        self.position.ended = True

    def _iterator(self) -> Iterator[Batch]:
        generator = getattr(self.loader, "generator", None)
        if self.sampler is not None and isinstance(generator, torch.Generator):
            # Only the workers' seeds come from the generator, and every attempt must get the same seeds in this epoch.
            generator.manual_seed(self.rank.seed + self.rank.number + 1_000_003 * self.position.epoch)
        with self.rank.stop.shielded():
            iterator = iter(self.loader)
        if iterator is self.loader and self._read and callable(reset := getattr(iterator, "reset", None)):
            reset()  # NVIDIA DALI's iterators and MXNet's stay at the end of an epoch until this call
        self._read = True
        return iterator

    def tell_epoch(self) -> None:
        """Calls set_epoch() of the loader, its samplers and data sets, also within others, before the epoch is handed
        out, so that the epoch's length and position are right."""
        loader = self.loader
        parts = [loader, *(getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset"))]
        parts += [part for _, part in reached(loader) if isinstance(part, Sampler | Dataset)]
        for part in {id(part): part for part in parts}.values():
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(self.position.epoch)

    def note_where_left(self, done: int, early: bool) -> None:
        """Reports an epoch that began in its middle and that the program left at another batch than the epoch before.
        early: whether a break has left the epoch."""
        place = self.position
        left = place.batch if (early or not place.ended) and self.left != 0 else None
        before, place.left = place.left, left
        if done and left != before and (before is not None or place.epoch == 0) and self.rank.is_first:
            where = "read to its end" if left is None else f"left after batch {left}"
            say(
                f"clusterdp: epoch {place.epoch} was {where}, and this attempt began it after batch {done}. A program "
                "that leaves an epoch after so many batches counts them from there: enumerate(epoch, epoch.done)."
            )

    def _skip(self, iterator: Iterator[Batch], batches: int) -> None:
        if not batches:
            return
        began, read, dropped = time.monotonic(), 0, list[Batch]()
        with self._streams:
            for batch in islice(iterator, batches):
                read, dropped = read + 1, [batch]  # `dropped` keeps only the last batch
        if read < batches:
            raise StateError(
                f"loader: it has changed since the checkpoint: epoch {self.position.epoch} ended after {read} batches, "
                f"of which {batches} had been counted. Resume with the data as they were; at the end of an epoch they "
                "may change."
            )
        state = "state" if self._place is None else "state of this rank"
        self._say(
            f"it has no {state} to resume from: {batches} batches of epoch {self.position.epoch} were read again and "
            f"dropped, in {time.monotonic() - began:.1f} s. job.loader() would not read them."
        )
        was, saved = self._epoch_rng.saved_mark, self._epoch_rng
        if was is None or not self._draws or saved.saved_facts != saved.facts:
            return
        if mark_of(dropped[0]) != was:
            self.differs = (
                f"batch {batches} of epoch {self.position.epoch} is not the one that it was: what comes is not exact, "
                "and samples of this epoch may come twice or not at all. Something in it draws from random numbers of "
                "its own: seed it from the epoch in set_epoch(epoch), or let it draw from the global ones, as "
                "WebDataset does with .shuffle(1000, rng=random), or use job.loader()."
            )
            self._say(self.differs)

    @staticmethod
    def _drop(iterator: Iterator[Batch]) -> None:
        for _ in iterator:
            pass

    def _say(self, what: str) -> None:
        if self.rank.is_first:
            say(f"clusterdp: loader: {what}")
