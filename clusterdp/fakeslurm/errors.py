"""The errors of a fake cluster itself. (core/error_texts.py has the refusals of its commands.)"""

from __future__ import annotations


class FakeSlurmError(Exception):
    """`<object>: <what is wrong>. <what to do>.`"""
