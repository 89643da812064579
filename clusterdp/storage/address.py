"""masked(): a URL without its secrets, for people."""

from __future__ import annotations

import re

_SECRET = re.compile(r"([?&][^=&]*(?:key|secret|token|password|credential|sig)[^=&]*=)[^&]*", re.IGNORECASE)


def masked(url: str) -> str:
    """Returns `sftp://me:***@host/run` for `sftp://me:secret@host/run`: for logs, errors and run folders."""
    url = _SECRET.sub(r"\1***", url)
    scheme, separator, rest = url.partition("://")
    user, colon, tail = rest.partition(":")
    authority, slash, path = tail.partition("/")
    if not separator or not colon or "/" in user or "@" not in tail or authority.isdigit():
        return url
    if "@" in authority:
        return f"{scheme}://{user}:***@{authority.rpartition('@')[2]}{slash}{path}"
    return f"{scheme}://{user}:***@{tail.rpartition('@')[2]}"  # a slash in the password is not valid, but still secret


def has_password(url: str) -> bool:
    return masked(url) != url
