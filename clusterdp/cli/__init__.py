"""The command line.

command_line   `main`: words in, exit code out
arguments      each verb with its arguments
sending        the verbs that submit a job
verbs          all other verbs
named          the run or the config that a word names
parser         argparse with one line for each mistake
completion     words on TAB, in bash, zsh and fish
streams        stdout and stderr: UTF-8, without control characters, silent once they are closed
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
