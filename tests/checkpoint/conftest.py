from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterdp.checkpoint.load import choose


@pytest.fixture(scope="session", autouse=True)
def no_pauses() -> Iterator[None]:
    """Between two tries to read: the errors of these tests last or pass at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "PAUSES_S", (0.0,) * len(choose.PAUSES_S))
        yield
