"""The scripts in findings/, which people run: each pins what it installs, cleans up, and does without clusterdp."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "findings"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
INSTALL = re.compile(r"pip install --quiet (.+)")
NEEDED = ("#!/usr/bin/env bash\n# ", "\nset -euo pipefail\n", "$(mktemp -d)\n", "\ntrap ", "\n# Guess: ", "\n# Seen 20")


def faults(text: str) -> list[str]:
    words = INSTALL.findall(text)
    pinned = all("==" in word for line in words for word in line.split()) if words else "\nversion=" in text
    missing = [f"lacks {needed!r}" for needed in NEEDED if needed not in text]
    return missing + ["names clusterdp"] * ("clusterdp" in text) + ["has a package without =="] * (not pinned)


def test_findings_pin_packages_clean_up_and_do_without_clusterdp() -> None:
    assert SCRIPTS
    assert {path.name: found for path in SCRIPTS if (found := faults(path.read_text()))} == {}


def test_findings_are_executable_bash() -> None:
    assert [path.name for path in SCRIPTS if not os.access(path, os.X_OK)] == []
    assert [path.name for path in SCRIPTS if subprocess.run(["bash", "-n", path]).returncode] == []


def test_readme_of_findings_lists_each_script_with_its_surprise() -> None:
    rows = re.findall(r"^\| \[(.+)\]\((.+)\) \| (.+) \| .+ \|$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    surprises = [path.read_text().splitlines()[1].removeprefix("# ") for path in SCRIPTS]
    assert rows == [(path.stem, path.name, surprise) for path, surprise in zip(SCRIPTS, surprises, strict=True)]


def test_faults_of_a_finding_are_found() -> None:
    good = SCRIPTS[0].read_text()
    assert faults(good) == []
    for old, new in ("==", ">="), ("mktemp -d", "pwd"), ("\ntrap ", "\n: "), ("# Guess: ", "# "), ("seen", "clusterdp"):
        assert faults(good.replace(old, new)), old
