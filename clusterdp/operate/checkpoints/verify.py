"""`clusterdp checkpoint verify`: compares all bytes of checkpoints with their checksums, newest commit first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TextIO

from clusterdp.checkpoint.format.manifest import CheckpointInfo
from clusterdp.checkpoint.format.read_targets import DiscardTarget
from clusterdp.checkpoint.format.verified_reads import (
    BlockRange,
    check_sizes,
    ranges_of_file,
    read_manifest,
    read_range,
    threads_for,
)
from clusterdp.errors import DamagedError
from clusterdp.operate.checkpoints.ls import why_of
from clusterdp.operate.checkpoints.place import CheckpointPlace
from clusterdp.operate.checkpoints.read_progress import read_progress
from clusterdp.operate.output.formatting import Colour
from clusterdp.storage import Storage
from clusterdp.wording import duration, size

Advance = Callable[[int], None]


@dataclass(frozen=True)
class CheckpointDamage:
    """The damage that was found in a checkpoint. `damage` has a line for each damaged file, `unread` a line for each
    unreadable file."""

    damage: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return not self.damage and not self.unread

    @property
    def word(self) -> str:
        return "good" if self.good else "bad" if self.damage else "unread"


def show_findings(place: CheckpointPlace, out: TextIO) -> int:
    """Verifies all checkpoints, or the checkpoints that the user named. Returns the exit code: 1 if a checkpoint is not
    good."""
    commits, damaged = place.commits()
    if place.which is not None:
        damaged = [damage for damage in damaged if place.names(damage)]
        commits = place.of_which(commits, none_will_do=bool(damaged))
    colour = Colour(out)
    sizes = {info.data: info.bytes for info in commits}
    verified: dict[str, int] = {}
    good, began = 0, time.monotonic()
    with read_progress(out, sum(sizes.values())) as bar:
        for damage in damaged:
            bar.say(f"{colour('red', 'bad   ')}  {why_of(damage)}")
        for info, finding in findings(place.storage, commits, bar.begin, bar.advance):
            if finding.good:
                good += 1
                verified[info.data] = info.bytes
            word = colour("green" if finding.good else "red", finding.word.ljust(6))
            bar.say(f"{word}  step {info.step}  {size(info.bytes)}  {info.token}")
            for line in (*finding.damage, *finding.unread):
                bar.say(f"        {line}")
    took = time.monotonic() - began
    out.write(f"{good} of {len(commits) + len(damaged)} good; {size(sum(verified.values()))} verified")
    out.write(f" in {duration(took)}\n" if took >= 2 else "\n")
    return 0 if good == len(commits) + len(damaged) else 1


def findings(
    storage: Storage, commits: Sequence[CheckpointInfo], begin: Callable[[str], None], advance: Advance
) -> Iterator[tuple[CheckpointInfo, CheckpointDamage]]:
    """Yields a finding for each checkpoint, newest first. Files that two manifests share, as after `resume --from`, are
    read once."""
    known: dict[str, CheckpointDamage] = {}
    for info in reversed(commits):
        begin(f"step {info.step}")
        if info.data not in known or not known[info.data].good:
            finding = check(storage, info, advance)
            known[info.data] = finding
        else:
            finding = check_manifest(storage, info)
        yield info, finding


def check(storage: Storage, info: CheckpointInfo, advance: Advance) -> CheckpointDamage:
    """Checks the manifest and all files, several at a time. The check continues after a damaged file."""
    try:
        manifest = read_manifest(storage, info)
    except (DamagedError, OSError) as error:
        advance(info.bytes)
        return _finding({info.name: error})
    wrong: dict[str, Exception] = {}
    ranges: list[BlockRange] = []
    for name, record in manifest.files.items():
        of_file = list(ranges_of_file(path := record.path(f"{info.folder}/{name}"), record))
        try:
            check_sizes(storage, of_file)
            ranges += of_file
        except (DamagedError, OSError) as error:
            wrong[path] = error
            advance(record.size)

    nowhere = DiscardTarget()

    def read(blocks: BlockRange) -> Exception | None:
        try:
            read_range(storage, blocks, nowhere)
        except (DamagedError, OSError) as error:
            return error
        finally:
            advance(blocks.size)
        return None

    with ThreadPoolExecutor(threads_for(ranges), thread_name_prefix="verify") as pool:
        try:
            for blocks, trouble in zip(ranges, pool.map(read, ranges), strict=True):
                if trouble is not None:
                    wrong.setdefault(blocks.name, trouble)  # one message a file, even if several blocks are damaged
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C, no further file is read
            raise
    return _finding(wrong)


def check_manifest(storage: Storage, info: CheckpointInfo) -> CheckpointDamage:
    try:
        read_manifest(storage, info)
    except (DamagedError, OSError) as error:
        return _finding({info.name: error})
    return CheckpointDamage()


def _finding(wrong: dict[str, Exception]) -> CheckpointDamage:
    damage = [str(error) for error in wrong.values() if isinstance(error, DamagedError)]
    unread = [f"{name}: {error}" for name, error in wrong.items() if not isinstance(error, DamagedError)]
    return CheckpointDamage(tuple(damage), tuple(unread))
