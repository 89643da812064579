"""Login nodes list checkpoints: they must not pay for torch, or have it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "safetensors", "fsspec")


@pytest.mark.parametrize(
    "module", ["layout", "manifest", "retention", "errors", "blocks", "skeleton", "payload", "chunks", "strides"]
)
def test_the_torch_free_half_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, clusterdp.checkpoint.{module}; print([m for m in {HEAVY} if m in sys.modules])"
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
