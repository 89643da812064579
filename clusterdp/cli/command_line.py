"""`main`: runs a command line, and returns its exit code.

Exit codes: 0 done; 1 the job failed, check found an error, or checkpoints are bad or differ; 2 a mistake in the config
or the words; 3 Slurm refused; 4 no such run, or the run does not allow this now; 5 an error of checkpoints; 6 the ranks
did not find each other; 7 the fake cluster failed; 9 the cluster behind ssh cannot be reached; 130 Ctrl-C; 143 the job
was cancelled.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterdp.cli import streams
from clusterdp.cli.arguments import parser, read_options
from clusterdp.errors import ClusterdpError, ConfigError, OutputError

if TYPE_CHECKING:
    from clusterdp.remote.runs_there import RemoteSource

MANY_HOSTS = frozenset({"init", "top"})  # verbs that use options.on themselves


def main(words: Sequence[str] | None = None) -> int:
    # Imports and configs make objects that are never freed. Garbage collection among these objects takes a tenth of the
    # time until a verb starts.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)  # no garbage collection at the exit: saves 15 ms of each submit
    with streams.prepared():
        return _main(sys.argv[1:] if words is None else words)


def _main(words: Sequence[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:
        from clusterdp.cli import completion

        completion.answer(parser())
    debug = False
    try:
        hosts, words = take_hosts(words)
        options = read_options(words)
        debug, options.on, options.remote_source = options.debug, hosts, remote_source
        code: int = _run(hosts, words, options)
        sys.stdout.flush()  # here, a BrokenPipeError is still handled
        return code
    except BrokenPipeError:  # as in `clusterdp logs | head`
        streams.abandon(sys.stdout)
        return 141
    except KeyboardInterrupt:
        return 130
    except (ClusterdpError, UnicodeEncodeError, OSError) as error:
        if debug:
            raise
        if isinstance(error, OutputError):
            streams.abandon(sys.stdout)
        streams.complain(error)
        return error.exit_code if isinstance(error, ClusterdpError) else 2 if isinstance(error, ValueError) else 4


def _run(hosts: Sequence[str], words: Sequence[str], options: argparse.Namespace) -> int:
    """Runs the verb on this machine, or on the host that `--on` or the site profile names."""
    from clusterdp.site_profile import HERE, default_host  # not for --help: pathlib takes longer than all of it

    words = [word for word in words if word != "--debug"]
    host = hosts[-1] if hosts else default_host() or HERE
    if host != HERE and words[0] not in MANY_HOSTS:
        if len(hosts) > 1:
            raise ConfigError(f"--on {' --on '.join(hosts)}: {words[0]} runs on one machine. Name one.")
        from clusterdp.remote.run_verb import run_verb, stays_here

        if not stays_here(words[0], options, named=bool(hosts)):
            return run_verb(host, words, options)
    code: int = options.verb(options)
    return code


def remote_source(host: str, everywhere: bool) -> RemoteSource:
    """Returns the runs of a host, for `top`."""
    from clusterdp.remote.runs_there import RemoteSource

    return RemoteSource(host, everywhere)


def take_hosts(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the values of `--on`, and the other words. After `--`, the words belong to another program."""
    hosts, others, rest = [], [], list(words)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if word == "--on":
            if not rest or rest[0] == "--":
                raise ConfigError("--on: has no value. Write a host of ~/.ssh/config after it, or `here`.")
            hosts.append(rest.pop(0))
        elif word.startswith("--on="):
            hosts.append(word[len("--on=") :])
        else:
            others.append(word)
    return hosts, others + rest
