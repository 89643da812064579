"""Makes an HTML page as one file: template, styles and Content-Security-Policy. The texts on a page come from other
people. Therefore the template escapes every value. The Content-Security-Policy allows only clusterdp's own scripts and
styles, and forbids the page to load any file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterdp.operate.output.terminal import printable

HERE = Path(__file__).parent


def base_style() -> str:
    return (HERE / "base.css").read_text(encoding="utf-8")


def policy(styles: Sequence[str], scripts: Sequence[str] = ()) -> str:
    """Returns the Content-Security-Policy that allows a page only these styles and scripts."""

    def hashes(texts: Sequence[str]) -> str:
        digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"

    allowed = f"style-src {hashes(styles)}; script-src {hashes(scripts)}"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def template(folder: Path) -> Any:
    """Returns the template page.html.j2 of `folder`. A page's template may import the templates of this package."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.get_template("page.html.j2")
