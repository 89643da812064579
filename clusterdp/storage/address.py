"""masked(): returns a URL without its secrets, for texts that people read."""

from __future__ import annotations

import re

_SECRET = re.compile(r"([?&][^=&]*(?:key|secret|token|password|credential|sig)[^=&]*=)[^&]*", re.IGNORECASE)


def masked(url: str) -> str:
    """Returns `sftp://me:***@host/run` for `sftp://me:secret@host/run`: the form for logs, errors and run folders."""
    url = _SECRET.sub(r"\1***", url)
    scheme, separator, rest = url.partition("://")
    user, colon, tail = rest.partition(":")
    authority, slash, path = tail.partition("/")
    if not separator or not colon or "/" in user or "@" not in tail or authority.isdigit():
        return url
    if "@" in authority:
        return f"{scheme}://{user}:***@{authority.rpartition('@')[2]}{slash}{path}"
    return f"{scheme}://{user}:***@{tail.rpartition('@')[2]}"  # a password with a slash is not valid, but secret


def has_password(url: str) -> bool:
    return masked(url) != url
