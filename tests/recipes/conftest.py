from __future__ import annotations

from tests.train.conftest import group, job

__all__ = ["group", "job"]
