"""Login nodes list checkpoints: they must not pay for torch, or have it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import clusterdp.checkpoint

HEAVY = ("torch", "numpy", "safetensors", "fsspec")


def test_what_is_read_on_a_login_node_loads_nothing_heavy() -> None:
    folder = Path(clusterdp.checkpoint.__file__).parent / "format"
    names = ", ".join(f"clusterdp.checkpoint.format.{path.stem}" for path in folder.glob("*.py"))
    program = f"import sys, clusterdp.checkpoint.errors, {names}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_names_are_lazy_and_complete() -> None:
    program = """
import sys
import clusterdp.checkpoint as package
package.list_checkpoints("/nonexistent")
assert "torch" not in sys.modules
assert [getattr(package, name) for name in package.__all__] and "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
