"""The blocks of the pages: commands are parsed, configs are loaded, Python runs."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from clusterdp import config
from clusterdp.cli.arguments import read_options
from clusterdp.config.explain import explain
from tests.docs.pages import FENCE, LANGUAGES, PAGES, ROOT, blocks, commands, name

PRELUDE = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import clusterdp
from clusterdp.train import *
torch.set_num_threads(1)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
val_data = TensorDataset(torch.randn(32, 8), torch.randint(0, 3, (32,)))
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
job = own_job()
"""

# The function that the page defines, called.
AFTERWARDS = {"README.md": "Net, Images = (lambda: net), (lambda: data)\nmain(job, epochs=1)\n"}


def having(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def is_parsed(words: list[str]) -> bool:
    try:
        read_options(words)
    except SystemExit as end:  # after --help, or with a message
        return not end.code
    return True


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_of_a_page_name_their_language(page: Path) -> None:
    text = page.read_text()
    assert set(re.findall(r"^ *```(\w+)$", text, re.M)) <= LANGUAGES
    opened = re.findall(r"^ *```(.*)$", text, re.M)[::2]
    assert len(opened) == len(FENCE.findall(text))
    assert all(opened), "a block without a language: write ```text for output"


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name)
def test_command_lines_of_a_page_are_parsed(page: Path) -> None:
    for line in commands(page):
        assert is_parsed(shlex.split(line, comments=True)[1:]), line
        for key in re.findall(r" ((?!params)[a-z_]+\.[a-z_.]+)=", line):
            explain(key)


def test_command_lines_in_docstrings_are_parsed() -> None:
    lines = []
    for module in (*(ROOT / "clusterdp").rglob("*.py"), *(ROOT / "configs").glob("*.py")):
        nodes = ast.walk(ast.parse(module.read_text()))
        docs = (
            ast.get_docstring(node) for node in nodes if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        )
        lines += re.findall(r"^(?: {4})?(clusterdp [a-z]+ .*\.yaml.*)", "\n".join(filter(None, docs)), re.M)
    assert len(lines) >= 10
    for line in lines:
        assert is_parsed(shlex.split(line, comments=True)[1:]), line


@pytest.mark.parametrize("page", having("yaml"), ids=name)
def test_configs_of_a_page_are_loaded(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # no site profile
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "yaml"):
        runs = {"entry", "command", "script"} & set(yaml.safe_load(block.text))
        (tmp_path / "page.yaml").write_text(block.text + ("" if runs else "\ncommand: ['true']\n"))
        try:
            config.load(tmp_path / "page.yaml")
        except Exception as error:
            pytest.fail(f"{name(page)}:{block.line}: {error}")


@pytest.mark.parametrize("page", having("python"), ids=name)
def test_python_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path, forking: Path) -> None:
    parts = [PRELUDE, *(f"# line {block.line}\n{block.text}" for block in blocks(page, "python"))]
    parts.append(AFTERWARDS.get(name(page), ""))
    (tmp_path / "page.py").write_text("\n".join(parts))
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run([forking, "page.py"], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_programs_of_a_page_import_only_a_default_install(page: Path) -> None:
    """Blocks marked as not run show other libraries."""
    needed = [each for each in importlib.metadata.requires("clusterdp") or () if "extra ==" not in each]
    installed = {*(re.split(r"[^\w-]", each)[0] for each in needed), "clusterdp", "pytest"}
    for block in FENCE.finditer(page.read_text()):
        if block["language"] not in ("python", "diff") or "not run" in (block["before"] or ""):
            continue
        lines = textwrap.dedent(block["text"]).splitlines()
        if block["language"] == "diff":
            lines = [line[1:] for line in lines if not line.startswith("-")]
        nodes = [*ast.walk(ast.parse("\n".join(lines)))]
        found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        found |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert {each.partition(".")[0] for each in found} <= {*sys.stdlib_module_names, *installed}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"], ids=name)
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), link


def test_readme_fits_on_a_screen_and_a_half() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160
