"""Shards: samples in many files, such as WebDataset's tars. Each file is read by one worker of one rank.

    data = Shards("data/train-*.tar", read_tar, decode)          # or any read(path) that yields samples
    loader = job.loader(data, batch_size=64)                     # or Trainer.fit(data)

In each epoch, the files are distributed again. The saved position counts single samples. Ranks may have different
numbers of batches: an epoch ends on all ranks when the first rank has no batch left, or after `batches`.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import checked_class
from clusterdp.train.data.streams import mixed_seed, scratch_streams, seed_streams

Place = tuple[int, int]  # the file's number in the order of reading, and its finished samples
START: Place = (0, 0)


def read_tar(path: Any) -> Iterator[dict[str, Any]]:
    """Reads WebDataset's form: members with one name up to the first dot are a sample, {"__key__": ..., "png": ...}."""
    with tarfile.open(path) as tar:
        sample: dict[str, Any] = {}
        for member in tar:
            if not member.isfile():
                continue
            folder, _, base = member.name.rpartition("/")
            name, _, kind = base.partition(".")
            key = f"{folder}/{name}" if folder else name
            if sample and sample["__key__"] != key:
                yield sample
                sample = {}
            file = tar.extractfile(member)
            assert file is not None
            sample |= {"__key__": key, kind: file.read()}
        if sample:
            yield sample


@checked_class
class Shards(IterableDataset[Any]):
    """files: a pattern, or a list of arguments for read(). read(file): yields the file's samples, always in the same
    order. decode(sample): returns the training sample. Random augmentations in decode() depend only on seed, epoch and
    sample.

    buffer: number of consecutive samples of a file that are shuffled together, like the files; 0: no shuffling.
    batches: number of batches per rank in an epoch, which then has a length. A rank that has read all its files reads
    them again.
    """

    def __init__(
        self,
        files: str | Path | Collection[Any],
        read: Callable[[Any], Iterable[Any]] | type = read_tar,
        decode: Callable[[Any], Any] | type | None = None,
        *,
        buffer: int = 1000,
        batches: int | None = None,
    ):
        self.files: list[Any] = sorted(glob(str(files), recursive=True)) if isinstance(files, str | Path) else [*files]
        if not self.files:
            raise ConfigError(f"shards: there is no file {files}. Correct the pattern, or the list.")
        self.read, self.decode = read, decode
        self.buffer = buffer
        self.batches = batches

    def dealt(self, rank: int, world_size: int, seed: int, epoch: int) -> list[int]:
        """Returns the indices of this rank's files. Raises ConfigError on all ranks if a rank would have no file."""
        if len(self.files) < world_size:
            raise ConfigError(
                f"shards: {len(self.files)} files cannot be divided among {world_size} ranks. Write more, smaller ones."
            )
        order = list(range(len(self.files)))
        if self.buffer:
            order = _permutation(len(order), mixed_seed(seed, epoch))
        return order[rank::world_size]

    def walk(self, files: Sequence[int], seed: int, epoch: int, place: Place = START) -> Iterator[tuple[Place, Any]]:
        """Yields the samples from `place` on, each with the place of the next sample."""
        turn, begin = place
        idle = 0  # files in a row without a sample; the first file may be finished already
        while turn < len(files) or (self.batches is not None and idle <= len(files)):
            round_, at = divmod(turn, len(files))
            idle += 1
            for done, sample in self._file(files[at], mixed_seed(seed, epoch, round_, files[at]), begin):
                idle = 0
                yield (turn, done), sample
            turn, begin = turn + 1, 0

    def __iter__(self) -> Iterator[Any]:
        """Yields all samples of all files in order, not divided among ranks or workers."""
        for _, sample in self.walk(range(len(self.files)), 0, 0):
            yield sample

    def _file(self, number: int, seed: int, done: int) -> Iterator[tuple[int, Any]]:
        """Yields the samples of a file, shuffled within blocks. Therefore a resume can skip the earlier samples of the
        file: they are read, but not decoded."""
        size = self.buffer or 1
        samples = iter(self.read(self.files[number]))
        begin = done // size * size
        for _ in islice(samples, begin):
            pass
        while block := list(islice(samples, size)):
            for place in _permutation(len(block), mixed_seed(seed, begin))[done - begin :]:
                done += 1
                yield done, self._decoded(block[place], mixed_seed(seed, begin + place))
            begin = done = begin + len(block)

    def _decoded(self, sample: Any, seed: int) -> Any:
        if self.decode is None:
            return sample
        with scratch_streams():
            seed_streams(seed)
            return self.decode(sample)


def _permutation(size: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(size, generator=torch.Generator().manual_seed(seed >> 1)).tolist()
    return order
