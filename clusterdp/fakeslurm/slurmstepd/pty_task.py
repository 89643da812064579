"""The task of `srun --pty`: runs a program on a pseudo-terminal, which is copied to and from srun."""

import os
import pty
import sys

if __name__ == "__main__":
    if os.environ.get("SLURM_PROCID") != "0":  # only the first task has the terminal
        os.execvp(sys.argv[1], sys.argv[1:])
    status = os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:]))
    sys.exit(128 - status if status < 0 else status)
