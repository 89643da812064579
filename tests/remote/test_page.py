"""docs/from_the_laptop.md, typed whole, with a real sshd as the cluster."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.pages import ROOT, blocks
from tests.remote.conftest import Start


def test_page_from_the_laptop_is_typed_whole(start_sshd: Start) -> None:
    sshd = start_sshd(master=False)
    sshd.profile("")
    python = sshd.home / "envs/torch/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    project, said = sshd.here / "first", ""
    project.mkdir()
    for block in blocks(ROOT / "docs/from_the_laptop.md", tested="tests/remote/test_page.py"):
        first, _, rest = block.text.partition("\n")
        if first == "# config/clusterdp/hosts/cluster.yaml":
            written = (sshd.here / first[2:]).read_text()
            assert f"python: {python}" in written
            shown = [line.split("#")[0].split() for line in rest.splitlines()]
            assert [line.split() for line in written.splitlines()[1:3]] == shown[:2]
            (sshd.here / first[2:]).write_text(rest)
        elif block.language in ("yaml", "python"):
            (project / first[2:]).write_text(rest)
        for line in block.text.splitlines() if block.language == "bash" else ():
            # Not through pipes: the master connection stays, and would keep them open.
            with open(sshd.folder / "out", "w+") as out:
                done = subprocess.run(
                    ["bash", "-c", line],
                    cwd=project,
                    env=sshd.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
                out.seek(0)
                said += (printed := out.read())
            assert done.returncode == 0, f"{line}\n{printed}"
    for words in ("2 would be sent", "Submitted job", "trained", "2 elements", "first                       done"):
        assert words in said, said
    assert (project / "first.html").exists()
