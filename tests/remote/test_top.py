"""`clusterdp top --on cluster`: its rows, the screen of a run, and a verb, over one held ssh process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterdp.errors import Unreachable
from clusterdp.remote.runs_there import RemoteSource
from tests.operate.top.pilot import Player, play
from tests.remote.sshd import Sshd
from tests.waiting import wait_for


@pytest.fixture
def source(sshd: Sshd, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteSource]:
    """The runs of the project, of which one is done."""
    for name, value in sshd.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project)
    done = sshd.on("submit", "c.yaml", "run_dir=runs/first", cwd=project)
    assert done.returncode == 0, done.stderr
    wait_for("its end", lambda: "done" in sshd.on("status", "first", cwd=project).stdout, 60)
    found = RemoteSource("cluster")
    yield found
    found.close()


def test_runs_there_are_shown_and_annotated_over_one_held_process(
    source: RemoteSource, sshd: Sshd, project: Path
) -> None:
    async def story(player: Player) -> None:
        await player.until(lambda: player.names == ["first"])
        before = len(sshd.calls)
        await player.press("enter")
        await player.sees("trained")  # the last lines of rank 0
        await player.sees("curve")
        assert len(sshd.calls) == before
        await player.press("q", "n")
        await player.type("best so far")
        await player.press("enter")
        await player.until(lambda: "best so far" in sshd.on("status", "first", cwd=project).stdout)

    play(story, sources=[source])


def test_lost_connection_is_named_and_begun_again(source: RemoteSource, sshd: Sshd) -> None:
    assert [run["state"] for run in source.list().runs] == ["done"]
    assert source._session is not None
    source._session.connection.process.kill()
    with pytest.raises(Unreachable, match="the connection has ended"):
        source.list()
    assert [run["state"] for run in source.list().runs] == ["done"]
