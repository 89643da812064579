"""sbcast: copies a file to the nodes of a job, which share one file system in the fake."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ...core import error_texts, node_folders
from ...core.error_texts import Refusal
from ...core.job_ids import find, parse
from ...core.model import JobRecord
from ..options.getopt import GetoptParser, table
from ..options.read_words import read_words

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon

OPTIONS = table("""
    compress,C? exclude= fanout,F= force,f help jobid,j= preserve,p send-libs? size,s= timeout,t= treewidth= usage
    verbose,v version,V
""")
BAD = 255


async def run(client: Connection, daemon: Daemon) -> int:
    pairs, words = read_words(client, daemon, GetoptParser("sbcast", OPTIONS), "Usage: sbcast [OPTIONS] SOURCE DEST")
    options, environ = dict(pairs), client.environ
    if len(words) != 2:
        text = f"Need two file names, have {len(words)} names"
        raise Refusal(f'{text}\nTry "sbcast --help" for more information')
    if words[1].endswith("/"):
        raise Refusal("sbcast: error: Target filename cannot be a directory.")
    compression = options.get("compress") or environ.get("SBCAST_COMPRESS") or "lz4"
    if compression not in ("lz4", "none"):
        client.error(f"sbcast: error: Compression type '{compression}' unknown, disabling compression support.")
    source = os.path.join(client.cwd, words[0])
    try:
        empty = not os.stat(source).st_size
    except OSError as error:
        raise Refusal(f"sbcast: error: Can't open `{words[0]}`: {error.strerror}", BAD) from None
    if os.path.isdir(source):
        raise Refusal(f"sbcast: error: Can't mmap file `{words[0]}`, No such device.", BAD)
    job, nodes = _target(options.get("jobid") or environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID"), daemon)
    if empty:
        client.error(f"sbcast: {daemon.shape.settings.release.warning}: file `{words[0]}` is empty.")
    targets = _targets(daemon, nodes, os.path.join(job.desc.folder, words[1]))
    force = "force" in options or "SBCAST_FORCE" in environ
    preserve = "preserve" in options or "SBCAST_PRESERVE" in environ
    try:
        for target in targets:
            await asyncio.to_thread(_copy, source, target, force, preserve)
    except OSError as error:
        for node in nodes:
            client.error(f"sbcast: error: REQUEST_FILE_BCAST({node}): {error.strerror}")
        return error.errno or 1
    return 0


def _target(text: str | None, daemon: Daemon) -> tuple[JobRecord, list[str]]:
    """Returns the job and the nodes that get the file: all nodes of the job, or of one step."""
    if text is None:
        why = "Need a job id to run this command.  Run from within a Slurm job or use the --jobid option."
        raise Refusal(f"sbcast: error: {why}")
    name = parse(text)
    job = next(iter(find(daemon.model, name)), None) if name else None
    step = job.step(name.step) if job and name and name.step else None
    why = ""
    if not job or (name and name.step and not (step and step.live)):
        why = error_texts.INVALID_JOB_ID
    elif job.waits:
        why = error_texts.PENDING
    elif not job.running:
        why = error_texts.ALREADY_DONE
    if why or not job:
        raise Refusal(f"sbcast: error: Slurm job {text if name else 0} lookup error: {why}", BAD)
    return job, step.nodes if step else job.nodes


def _targets(daemon: Daemon, nodes: list[str], target: str) -> list[str]:
    """Returns the files to write: one file, or one per node if nodes have their own folder at this path."""
    settings = daemon.shape.settings
    if not settings.node_local:
        return [target]
    on_nodes = (node_folders.path_of(daemon.paths.folder, node, settings.shared, Path(target)) for node in nodes)
    return list(dict.fromkeys(map(str, on_nodes)))


def _copy(source: str, target: str, force: bool, preserve: bool) -> None:
    """Copies the file to a temporary name, then renames the copy: programs that run from the old file can continue."""
    if not force and os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=f".{os.path.basename(target)}.")
    os.close(handle)
    try:
        (shutil.copy2 if preserve else shutil.copy)(source, temporary)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
