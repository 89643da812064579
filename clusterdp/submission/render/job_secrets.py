"""Secrets reach a job by its environment, or by a file that each attempt reads, but never by the run folder.

sbatch keeps the submitter's environment in Slurm's own state, which only root and Slurm can read, and passes the
environment to each attempt. `scontrol show job` does not show the environment.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from clusterdp.config.tree import Config
from clusterdp.errors import ConfigError


def secret_path(path: str) -> str:
    """Returns a secret file's absolute path for the script, because `~` means the submitter's home."""
    return str(Path(path).expanduser().absolute())


def secret_paths(config: Config) -> list[str]:
    """Returns the files that hold secrets, which the snapshot leaves out."""
    named = [*config.launch.secret_files.values(), *filter(None, [config.notify.webhook_file])]
    return [secret_path(path) for path in named]


def check_secrets(config: Config) -> None:
    """Raises ConfigError for the first secret that the job would not find, or that other users could read."""
    for name in config.launch.secrets:
        if not os.environ.get(name):
            raise ConfigError(f"launch.secrets: {name} is not set here. Export it, and submit again.")
    for name, path in config.launch.secret_files.items():
        _check_file(f"launch.secret_files.{name}", secret_path(path))
    if config.notify.webhook_file and config.notify.on:
        file = secret_path(config.notify.webhook_file)
        _check_file("notify.webhook_file", file)
        if not Path(file).read_bytes().startswith((b"https://", b"http://")):
            raise ConfigError(f"notify.webhook_file: {file} has no address. Write it there alone: https://...")


def _check_file(key: str, file: str) -> None:
    try:
        status = os.stat(file)
    except OSError as error:
        raise ConfigError(f"{key}: {file}: {error.strerror}. Name the file that holds it.") from None
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        raise ConfigError(f"{key}: {file} is not a file with something in it. Name the one that holds it.")
    if status.st_mode & 0o077:
        raise ConfigError(f"{key}: others can read or write {file}. `chmod 600` it.")
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{key}: {file} is not yours. Name a file of your own.")
