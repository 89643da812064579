"""daemon_main.py FOLDER: starts the daemon of that cluster in the background. Exits with 0 when the daemon answers."""

# ruff: noqa: E402

from __future__ import annotations

import os
import sys

# The folder above clusterdp/, because this program runs without site and its paths.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from clusterdp.fakeslurm.start_daemon import start

sys.exit(start(sys.argv[1]))
