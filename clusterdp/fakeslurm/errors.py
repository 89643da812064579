"""The errors of a fake cluster itself. (What its commands refuse is in core/error_texts.py.)"""

from __future__ import annotations


class FakeSlurmError(Exception):
    """`<object>: <what is wrong>. <what to do>.`"""
