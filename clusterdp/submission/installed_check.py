"""Checks at submit, without an import, that the packages that the config needs are installed. Without the check the job
would fail after its wait in the queue, when all ranks have started."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from clusterdp.config import Config
from clusterdp.errors import ConfigError

# module -> the extra of clusterdp that installs the module
EXTRAS = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "s3fs": "s3", "sshfs": "sftp"}
SCHEMES = {"s3": "s3fs", "s3a": "s3fs", "sftp": "sshfs", "ssh": "sshfs"}


def check_installed(config: Config) -> None:
    """Raises ConfigError for the first package that this interpreter, which is also the job's, does not find."""
    for key, module in _asked(config):
        if find_spec(module) is None:
            remedy = f"pip install 'clusterdp[{EXTRAS[module]}]'"
            raise ConfigError(f"{key} needs {module}, which is not installed. {remedy}.")
    url = config.checkpoint.url or ""
    if "://" in url and not url.startswith("file://"):
        from clusterdp.storage.url import check_scheme  # a plain path needs no fsspec, which takes 30 ms

        check_scheme(url)


def _asked(config: Config) -> Iterator[tuple[str, str]]:
    for name in config.metrics.to:
        if name in EXTRAS:
            yield f"metrics.to: {name}", name
    scheme, address, _ = (config.checkpoint.url or "").partition("://")
    if address and scheme in SCHEMES:
        yield f"checkpoint.url: {scheme}://", SCHEMES[scheme]
