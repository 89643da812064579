"""`clusterdp fake`: the verbs of the fake cluster, with the parser and the errors of clusterdp."""

from __future__ import annotations

import argparse
from typing import Any

from clusterdp.cli.parser import CliParser
from clusterdp.errors import FakeError
from clusterdp.fakeslurm import cli


def add_to(fake: CliParser) -> None:
    """Adds the verbs below `clusterdp fake` to the parser."""
    cli.add_to(fake)
    verbs: Any = next(action for action in fake._actions if isinstance(action, argparse._SubParsersAction))
    for sub in verbs.choices.values():
        sub.set_defaults(verb=_guarded(sub.get_default("verb")))


def _guarded(run: Any) -> Any:
    def guarded(options: argparse.Namespace) -> int:
        from clusterdp.fakeslurm.errors import FakeSlurmError

        try:
            run(options)
        except FakeSlurmError as error:
            raise FakeError(str(error)) from None
        return 0

    return guarded
