"""What is not installed is told at submit, in a line with what to type; not by a job that has waited for hours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import known_implementations

from clusterdp import config
from clusterdp.errors import ConfigError
from clusterdp.submission import installed_check
from clusterdp.submission.installed_check import EXTRAS, check_installed
from clusterdp.submission.plan import make_plan

REPO = Path(__file__).parents[2]
ENTRY = {"entry": "configs.characters:main"}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with none of the extras."""
    there = installed_check.find_spec
    away = {"class": "no_such_package.AwayFileSystem", "err": "pip install away"}
    monkeypatch.setitem(known_implementations, "away", away)
    monkeypatch.setattr(installed_check, "find_spec", lambda name: None if name in EXTRAS else there(name))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"metrics": {"to": ["wandb"]}}, r"metrics.to: wandb needs wandb, .* pip install 'clusterdp\[wandb\]'\.$"),
        ({"checkpoint": {"url": "s3://b/x"}}, r"checkpoint.url: s3:// needs s3fs, .* pip install 'clusterdp\[s3\]'\.$"),
        ({"checkpoint": {"url": "sftp://h/x"}}, r"checkpoint.url: sftp:// .* pip install 'clusterdp\[sftp\]'\.$"),
        ({"checkpoint": {"url": "s4://b/x"}}, r"checkpoint.url: s4://b/x has an unknown scheme, 's4'\. Give a path,"),
        ({"checkpoint": {"url": "away://b/x"}}, r"checkpoint.url: away://b/x needs a package .*: pip install away$"),
    ],
)
@pytest.mark.usefixtures("bare")
def test_missing_package_or_unknown_url_scheme_is_an_error_without_launch_setup(
    more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(config.from_mapping({**ENTRY, **more}))
    make_plan(config.from_mapping({**ENTRY, **more, "launch": {"setup": "source env"}}))  # the job may have it then


@pytest.mark.usefixtures("bare")
def test_config_needing_no_optional_package_passes_the_installed_check() -> None:
    check_installed(config.from_mapping({**ENTRY, "checkpoint": {"url": "memory://x"}}))


def test_pip_extras_named_in_error_messages_exist_in_pyproject() -> None:
    project = (REPO / "pyproject.toml").read_text(encoding="utf-8")
    for extra in EXTRAS.values():
        assert f"\n{extra} = [" in project
