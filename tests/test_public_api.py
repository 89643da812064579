"""tests/golden/api.txt: each public name with its signature, so that no release changes one by accident.

`CLUSTERDP_REFRESH=1 python -m pytest tests/test_public_api.py` writes the file anew. CHANGELOG.md names each line that
is removed or changed.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden/api.txt"
PACKAGES = ("clusterdp", "clusterdp.checkpoint", "clusterdp.fakeslurm", "clusterdp.train")


def lines_of(name: str, thing: object) -> Iterator[str]:
    if not callable(thing):
        yield f"{name}: {type(thing).__name__}"
    elif inspect.isclass(thing) and issubclass(thing, Exception):
        yield f"{name}({', '.join(base.__name__ for base in thing.__bases__)})"
    else:
        yield f"{name}{signature_of(thing)}"
        for attribute, value in sorted(vars(thing).items()) if inspect.isclass(thing) else ():
            if not attribute.startswith("_") and isinstance(value, property):
                yield f"{name}.{attribute}: property"
            elif not attribute.startswith("_") and inspect.isfunction(value):
                yield f"{name}.{attribute}{signature_of(value)}"


def signature_of(thing: Callable[..., object]) -> str:
    """As written in the code, without addresses of defaults."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(thing))).replace("'", "")


def api() -> str:
    lines = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            lines += lines_of(f"{package}.{name}", getattr(module, name))
    return "\n".join(lines) + "\n"


def test_public_names_keep_their_signatures() -> None:
    now = api()
    if os.environ.get("CLUSTERDP_REFRESH"):
        GOLDEN.write_text(now)
    assert now == GOLDEN.read_text()
