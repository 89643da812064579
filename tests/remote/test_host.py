from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHOW = "import sys; from clusterdp.remote.host import remote_host; print(*remote_host('c')[1:], 'yaml' in sys.modules)"


@pytest.mark.parametrize(
    ("profile", "shown"),
    [
        ("remote: {python: /a/b/python}\n", "~/clusterdp/p /a/b/python False"),
        ("remote: {folder: ~/runs/PROJECT, python: ~/e/bin/python}  # here\n", "~/runs/p ~/e/bin/python False"),
        ("on: c\nremote:\n  folder: ~/x  # folder: ~/no\n  python: /a\nlocal: {}\n", "~/x /a False"),
        ("remote: {python: '/a/b'}\n", "~/clusterdp/p /a/b True"),
        ("on: c\n", "~/clusterdp/p python3 False"),
    ],
)
def test_plain_settings_of_a_host_are_read_without_yaml(tmp_path: Path, profile: str, shown: str) -> None:
    """Loading YAML takes longer than all else of a verb with --on."""
    (tmp_path / "clusterdp").mkdir()
    (tmp_path / "clusterdp/site.yaml").write_text(profile)
    (tmp_path / "p").mkdir()
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [sys.executable, "-c", SHOW]
    done = subprocess.run(words, cwd=tmp_path / "p", env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == shown
