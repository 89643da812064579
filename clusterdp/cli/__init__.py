"""The command line."""

from clusterdp.cli.command_line import main

__all__ = ["main"]
