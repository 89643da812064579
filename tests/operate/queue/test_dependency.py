from pathlib import Path

import pytest

from clusterdp.config.load import Given
from clusterdp.errors import RunError
from clusterdp.operate.queue.dependency import with_after


@pytest.mark.parametrize("word", ["sometimes:a", "done:a"])
def test_run_to_follow_of_an_unknown_state_names_the_states(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="no such run folder") as refused:
        with_after(Given({}, {}), [word])
    assert ("Before a `:` stands one of done, any, started, each." in str(refused.value)) == (word == "sometimes:a")
