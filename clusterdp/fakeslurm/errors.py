"""The errors of a fake cluster itself. (core/error_texts.py has the refusals of its commands.)"""

from __future__ import annotations


class FakeSlurmError(Exception):
    """`<object>: <what is wrong>. <what to do>.`"""


VERB = "clusterdp fake" if __name__.startswith("clusterdp.") else "fakeslurm"  # what its user types
