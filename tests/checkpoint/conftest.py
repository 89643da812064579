from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterdp.checkpoint import choosing


@pytest.fixture(scope="session", autouse=True)
def no_pauses() -> Iterator[None]:
    """Between two tries to read: the errors of these tests last or pass at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "PAUSES_S", (0.0,) * len(choosing.PAUSES_S))
        yield
