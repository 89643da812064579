"""Tests that torch itself cannot pass in an older release: `make test-bound` runs them, too."""

from __future__ import annotations

import pytest
import torch

RELEASE = tuple(map(int, torch.__version__.partition("+")[0].split(".")[:2]))


def needs_torch(major: int, minor: int, reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif((major, minor) > RELEASE, reason=f"torch before {major}.{minor}: {reason}")


quiet_gloo = needs_torch(2, 11, "gloo prints a line for each group")
