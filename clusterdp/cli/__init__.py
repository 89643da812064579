"""The command line.

verbs          `main`, and a function for each verb
parser         argparse, with each mistake told in one line
completion     words on TAB, in bash, zsh and fish
streams        stdout and stderr: UTF-8, without control characters, and closed without noise
local_cluster  `--cluster local`
fake           `clusterdp fake`
checkpoint     `clusterdp checkpoint`
profile        `clusterdp profile`
rm             `clusterdp rm`
logs           `clusterdp logs`
sweep          `clusterdp submit --sweep` and `clusterdp sweep`
"""

from clusterdp.cli.verbs import main

__all__ = ["main"]
