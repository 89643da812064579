from __future__ import annotations

import pytest

from clusterdp.errors import ConfigError
from clusterdp.operate.logs.choice import Choice


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": "3-1"}, r"--rank: '3-1' is not a list of ranks. Write e.g. 3 or 0,3,8-15."),
        ({"rank": "-1"}, "--rank: '-1'"),
        ({"rank": "0", "every": True}, "--rank and --all"),
        ({"last": "ten"}, "-n: 'ten'"),
    ],
)
def test_invalid_logs_option_is_an_error_with_its_name(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Choice.read(**options)  # type: ignore[arg-type]
