"""The command line.

command_line   `main`: from words to an exit code
arguments      each verb with its arguments
sending        the verbs that submit a job
verbs          all others
named          what a word names: a run, a config
parser         argparse, with each mistake told in one line
completion     words on TAB, in bash, zsh and fish
streams        stdout and stderr: UTF-8, without control characters, and closed without noise
local_cluster  `--cluster local`
fake           `clusterdp fake`
checkpoint     `clusterdp checkpoint`
profile        `clusterdp profile`
rm             `clusterdp rm`
logs           `clusterdp logs`
rehearse       `clusterdp rehearse`
sweep          `clusterdp submit --sweep` and `clusterdp sweep`
"""

from clusterdp.cli.command_line import main

__all__ = ["main"]
