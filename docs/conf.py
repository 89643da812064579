"""How Sphinx makes the pages: `make docs`."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from docutils import nodes

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

project = "clusterdp"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "clusterdp"
html_static_path = html_css_files = ["pages.css"]
html_copy_source = False  # each page is served as Markdown, see copy_markdown()
myst_heading_anchors = 3
smartquotes = False
default_role = "literal"  # what docstrings write in `single` quotes
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
exclude_patterns = ["build"]
# Type variables; parameters that only the package itself passes; results that are read as a printed table.
INTERNAL = "Config Batch Item PerRank Agreed Plot OnEpoch Window Claim Control WorkerSettings SlurmEnv Checkpointer"
TABLES = "SentSweep WorkerSpeeds Phases LrFinder BatchSizeTable"
nitpick_ignore_regex = [("py:class", rf"(.*\.)?({'|'.join(f'{INTERNAL} {TABLES}'.split())})")]
# Addresses of Python's and torch's objects, without a network: a line has the name and its page.
OBJECTS = dict(line.split() for line in (HERE / "objects.txt").read_text().splitlines())


def link(app: Any, env: Any, node: Any, content: nodes.Node) -> nodes.Node | None:
    """Links an object of Python or torch. An object that objects.txt lacks stays unresolved, which fails the build."""
    address = OBJECTS.get(node.get("reftarget"))
    return nodes.reference("", "", content, internal=False, refuri=address) if address else None


def adapt_docstring(app: Any, kind: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are laid out for a terminal: an indented block after a colon is code, and a package's is a map."""
    if kind == "module":
        lines.clear()
    lines[:] = re.sub(r":\n\n    ", "::\n\n    ", "\n".join(lines)).split("\n")


def copy_markdown(app: Any, error: Exception | None) -> None:
    """Each page as `<page>.md` beside its HTML, and llms.txt, the list of them (llmstxt.org)."""
    if error or app.builder.name != "html":
        return
    lines = ["# clusterdp", "", "> Data-parallel PyTorch training on Slurm that cannot lose work.", ""]
    for page in sorted(app.env.found_docs):
        shutil.copyfile(HERE / f"{page}.md", Path(app.outdir) / f"{page}.md")
        lines.append(f"- [{app.env.titles[page].astext()}]({page}.md)")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n")
    texts = "".join((HERE / f"{page}.md").read_text() for page in app.env.found_docs)
    links = sorted(set(re.findall(r"https://[^\s)\"`<>]+", texts)))  # listed, and not fetched
    (Path(app.outdir) / "external-links.txt").write_text("\n".join(links) + "\n")


def setup(app: Any) -> None:
    app.connect("missing-reference", link)
    app.connect("autodoc-process-docstring", adapt_docstring)
    app.connect("build-finished", copy_markdown)
