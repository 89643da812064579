"""The config of a run: its keys, and the code that reads a config.

tree          the dataclasses: every key, its default, its comment; imports no other module of config
load          layers merged and resolved into one Config; and the config of a run folder, written and read back
files         one layer: a YAML file, `key=value` words or a mapping, each value with its place
value_types   the check that a value is of its key's type
checks        the rules for values beyond their types, alone and together
shell_words   text of a command on which only a shell acts
secrets       the refusal of secrets in a config
foreign_keys  keys of other tools, each with the key to write instead
params        the check that `params:` fits the entry's parameters
swept_values  the values of a key of a sweep: lists, range(5), log(1e-5, 1e-2)
elements      the elements of a sweep, each with its config
explain       `clusterdp show --explain`: the comments of the tree
"""

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
    site_profile,
    user_profile,
)
from clusterdp.config.tree import Config

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
