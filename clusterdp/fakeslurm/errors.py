"""What can go wrong with a fake cluster itself. (What its commands refuse to do is `refusals.py`.)"""


class FakeSlurmError(Exception):
    """`<object>: <what is wrong>. <what to do>.`"""
