"""A cluster that asks for a second factor: once, when the user opens the connection, and never by a verb."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterdp.errors import RemoteError
from tests.remote.conftest import Start
from tests.remote.sshd import SSHD

RULES = Path("/etc/pam.d/clusterdp-test-sshd")  # by the name of the program
PAM = """\
auth required pam_exec.so expose_authtok quiet {check}
auth required pam_permit.so
account required pam_permit.so
session required pam_permit.so
"""
CONFIG = """\
UsePAM yes
KbdInteractiveAuthentication yes
AuthenticationMethods publickey,keyboard-interactive:pam
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Path]:
    """An sshd with PAM rules that ask for a code."""
    if os.geteuid() or not RULES.parent.is_dir():
        pytest.skip("needs root, for rules of PAM")
    check = tmp_path / "check"
    check.write_text('#!/bin/sh\nread -r code\n[ "$code" = 123456 ]\n')
    check.chmod(0o755)
    RULES.write_text(PAM.format(check=check))
    program = tmp_path / RULES.name
    program.symlink_to(SSHD)
    yield program
    RULES.unlink()


def test_second_factor_is_asked_once_for_all_verbs(start_sshd: Start, program: Path, tmp_path: Path) -> None:
    sshd = start_sshd(master=False, more=CONFIG, program=program)
    asked = tmp_path / "asked"
    asked.touch()
    answer = tmp_path / "answer"
    answer.write_text(f'#!/bin/sh\necho "$1" >>{asked}\necho 123456\n')
    answer.chmod(0o755)
    sshd.environ |= {"SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force"}
    done = sshd.on("list")
    assert done.stderr == "clusterdp: cluster: there is no open connection. Type: ssh -fN cluster\n"
    assert (done.returncode, asked.read_text()) == (RemoteError.exit_code, "")
    sshd.open_master()
    assert len(asked.read_text().splitlines()) == 1
    for verb in ("list", "goodput", "why"):
        sshd.on(verb)
    assert sshd.on("list", "--all").returncode == 0
    assert len(asked.read_text().splitlines()) == 1
