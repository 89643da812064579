"""The config of a run: its keys, and the code that reads a config."""

from clusterdp.config.load import (
    Given,
    Loaded,
    dump,
    from_mapping,
    from_plain,
    from_resolved,
    load,
    load_with_sources,
    read,
    read_resolved,
    resolve,
)
from clusterdp.config.tree import Config
from clusterdp.site_profile import site_profile, user_profile

__all__ = [
    "Config",
    "Given",
    "Loaded",
    "dump",
    "from_mapping",
    "from_plain",
    "from_resolved",
    "load",
    "load_with_sources",
    "read",
    "read_resolved",
    "resolve",
    "site_profile",
    "user_profile",
]
