"""Storage: bytes at a URL, in a folder or in an object store.

    storage = open_storage("/scratch/run/checkpoints")     or file://, s3://, sftp://, memory://, ... (any of fsspec's)

Names are relative to the URL and have forward slashes (`step_00000010/x.json`). No method but write_at() overwrites a
file: if the name exists, FileExistsError is raised. A file is durable when the method that creates it returns: on a
file system the file has been fsynced (its folder is fsynced by `sync_folder`). On a store, the size of the stored file
has been read back. Errors are OSError, as Python's own file functions raise them. ConfigError means that a URL cannot
be opened at all.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit

from clusterdp.storage.address import has_password, masked
from clusterdp.storage.base import Readable, Storage
from clusterdp.storage.local import LocalStorage
from clusterdp.storage.memory import MemoryStorage
from clusterdp.storage.retry import RetryPolicy

__all__ = [
    "LocalStorage",
    "MemoryStorage",
    "Readable",
    "RetryPolicy",
    "Storage",
    "has_password",
    "masked",
    "open_storage",
]


def open_storage(url: str | os.PathLike[str], *, retry_policy: RetryPolicy | None = None, **options: Any) -> Storage:
    """Returns a Storage for a plain path or a URL. Modules for schemes other than `file` are imported when they are
    used. options: arguments of fsspec's file system for the scheme (endpoint_url=...), or of asyncssh's connect() for
    sftp.
    """
    text = os.fspath(url)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return LocalStorage(text)
    if scheme == "file":
        return LocalStorage(unquote(urlsplit(text).path))
    policy = retry_policy or RetryPolicy()
    if scheme in ("s3", "s3a"):
        from clusterdp.storage.s3 import S3Storage

        return S3Storage(text, policy, options)
    if scheme in ("sftp", "ssh"):
        from clusterdp.storage.url import explained

        with explained(text):
            from clusterdp.storage.sftp import SftpStorage
        return SftpStorage(text, policy, options)
    from clusterdp.storage.url import UrlStorage

    return UrlStorage(text, policy, options)
