"""`clusterdp logs`: the options of this verb."""

from __future__ import annotations

import argparse
import sys

from clusterdp.cli.named import known_run
from clusterdp.cli.parser import CliParser

ABOUT = """\
print what the ranks printed

Of several ranks, one log is printed after the other. With -f, lines come as they
are printed, and by rank within each look."""


def add_to(sub: CliParser) -> None:
    sub.description = ABOUT
    sub.add_argument("--rank", metavar="RANKS", help="3, or 0,3,8-15; default: 0, with --errors all")
    sub.add_argument("--all", action="store_true", help="all ranks, each line with its rank")
    sub.add_argument("--attempt", metavar="A", help="2, 4242.1, or all; default: the newest")
    sub.add_argument("--errors", action="store_true", help="only what looks like an error; the same of many ranks once")
    count = "the last N lines of each log, or N errors; default: all, on a terminal some 1,000 lines"
    sub.add_argument("-n", "--tail", metavar="N", help=count)
    sub.add_argument("-f", "--follow", action="store_true", help="go on, over attempts, until the run is over")


def logs(options: argparse.Namespace) -> int:
    from clusterdp.operate.logs.choice import Choice
    from clusterdp.operate.logs.show_logs import show_logs

    choice = Choice.read(
        rank=options.rank,
        every=options.all,
        attempt=options.attempt,
        errors=options.errors,
        last=options.tail,
        follow=options.follow,
        terminal=sys.stdout.isatty(),
    )
    return show_logs(known_run(options.run), choice)
