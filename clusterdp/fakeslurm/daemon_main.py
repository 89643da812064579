"""daemon_main.py FOLDER: starts the daemon of the cluster in FOLDER in the background.

Exits with 0 when the daemon answers.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

# Without site, Python does not find installed packages. The package is clusterdp.fakeslurm, or fakeslurm alone.
folders = os.path.dirname(os.path.abspath(__file__)).split(os.sep)
names = folders[-2:] if os.path.exists(os.sep.join([*folders[:-1], "__init__.py"])) else folders[-1:]
sys.path[0] = os.sep.join(folders[: -len(names)]) or os.sep
sys.exit(import_module(".".join([*names, "start_daemon"])).start(sys.argv[1]))
