"""daemon_main.py FOLDER: starts the daemon of the cluster in FOLDER in the background.

Exits with 0 when the daemon answers.
"""

# ruff: noqa: E402

from __future__ import annotations

import os
import sys

# Adds the folder above clusterdp/, because without site, Python does not find installed packages.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from clusterdp.fakeslurm.start_daemon import start

sys.exit(start(sys.argv[1]))
