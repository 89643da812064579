"""Any Python file can be looked at: those of the environment, oddities of the language, and mutated programs."""

from __future__ import annotations

import ast
import copy
import random
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from clusterdp.check.check import all_findings
from clusterdp.check.cluster.cluster_facts import ClusterFacts
from clusterdp.check.program import ProgramText, read_python_file
from clusterdp.check.subject import Subject
from clusterdp.config import from_mapping
from clusterdp.submission.render.script_spec import ScriptSpec, make_spec
from tests.check.program_texts import PROGRAMS

STDLIB = Path(sysconfig.get_path("stdlib"))
MOST_S = 20.0  # of CPU time for one file
VALUES = {"command": "python train.py", "resources": {"nodes": 2, "tasks_per_node": 2, "gpus_per_node": 2}}
CALLS = b"""
import os, signal, torch
torch.save(); torch.save(*a, **k); torch.device(); x.to(); x.cuda(); open(); p.add_argument()
signal.signal(); os.putenv(); os.getenv(); os.environ.update()
"""
PARAMETERS = b"""
import torch
def f(a, /, b, *c, d, e=1, **g):
    torch.save(a, b); torch.save(c, d); torch.save(g, e)
f(); f(*x); f(1, 2, 3, d=4, **g)
class C:
    def f(): torch.save(self, f)
    def g(self, /): torch.save(x, self)
C.f(); C().f(); C().g(); C().g(1)
"""
ODDITIES = {
    "nothing": b"",
    "only a comment": b"#",
    "byte order mark": b"\xef\xbb\xbfimport torch\n",
    "latin-1": b"# -*- coding: latin-1 -*-\nname = '\xe9'\n",
    "latin-1 unnamed": b"name = '\xe9'\n",
    "utf-16": "import torch".encode("utf-16"),
    "unknown encoding": b"# coding: klingon\nx = 1\n",
    "encoding of no text": b"# coding: base64\nx = 1\n",
    "null byte": b"x = 1\0\n",
    "Python 2": b"print 'x'\nexec code in ns\nraise E, 'x'\n",
    "carriage returns": b"import torch\rtorch.save(x, 'a.pt')\r",
    "form feeds": b"import torch\n\x0c\nx = '\x1c\x0b'\ntorch.save(x, 'a.pt')\n",
    "invalid escapes": b"import re\nre.match('\\d\\.\\p', x)\n1 is 1\n",
    "open bracket": b"x = (" * 500,
    "many minus signs": b"x = " + b"-" * 20000 + b"1",
    "deep attributes": b"x" + b".a" * 1500 + b"()\n",
    "deep calls": b"f" + b"()" * 900 + b"\n",
    "deep brackets": b"[" * 90 + b"]" * 90,
    "deep sum": b"open(" + b"+".join([b"'a'"] * 5000) + b")\n",
    "deep blocks": b"".join(b" " * at + b"if x:\n" for at in range(95)) + b" " * 95 + b"pass\n",
    "long elif": b"if x: pass\n" + b"elif x: pass\n" * 3000,
    "long import": b"import " + b"a" * 300 + b"\nfrom ." + b"b" * 300 + b" import c\n",
    "beyond the package": b"from ........ import x\nfrom ..... import *\n",
    "imports itself": b"import train, train.train\nfrom . import train\n",
    "long path": b"open('" + b"a" * 5000 + b"', 'w'); open('/" + b"b" * 5000 + b"/log', 'w')\n",
    "home of nobody": b"open('~no-such-user/log', 'w')\n",
    "null in a path": b"open('/a\\0b/log', 'w'); open('a\\0b')\n",
    "surrogate in a path": b"open('/a\\ud800/log', 'w'); open('\\ud800')\n",
    "huge number": b"import os\nos.environ['MASTER_PORT'] = str(0x" + b"f" * 9000 + b")\n",
    "huge key": b"d[0x" + b"f" * 9000 + b"] = 1\n",
    "calls without arguments": CALLS,
    "parameters of all kinds": PARAMETERS,
    "call of itself": b"import torch\ndef f(x):\n    torch.save(x, x)\n    f(x)\nf(f)\nx = x\nx = x.x\n",
    "new syntax": b"match x:\n    case {'a': [1, *_], **k}: pass\n    case _: pass\n"
    + b"try: pass\nexcept* E: pass\n" * (sys.version_info >= (3, 11)),
}


def look(data: bytes, spec: ScriptSpec) -> ProgramText:
    """All of `check` on a train.py with this content."""
    file = spec.submit_dir / "train.py"
    file.write_bytes(data)
    began = time.process_time()
    program = read_python_file(file, spec.submit_dir)
    assert all(each.what for each in all_findings(Subject(spec, {}, program=program), ClusterFacts(), set()))
    assert time.process_time() - began < MOST_S
    return program


@pytest.fixture
def spec(tmp_path: Path) -> ScriptSpec:
    return make_spec(from_mapping(VALUES), tmp_path / "runs" / "x", tmp_path, "python")


@pytest.fixture
def without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that git ignores are asked for once a file: 5 ms each."""
    monkeypatch.setattr("clusterdp.check.surroundings.ignored_files._not_in_snapshot", lambda *_: [])


@pytest.mark.parametrize("data", ODDITIES.values(), ids=ODDITIES)
def test_check_accepts_an_unusual_python_file_within_20_cpu_seconds(data: bytes, spec: ScriptSpec) -> None:
    look(data, spec)


@pytest.mark.parametrize("oddity", ["byte order mark", "latin-1", "invalid escapes", "new syntax"])
def test_unusual_but_valid_python_file_is_read_completely(oddity: str, spec: ScriptSpec) -> None:
    assert look(ODDITIES[oddity], spec).complete


@pytest.mark.parametrize("oddity", ["carriage returns", "form feeds"])
def test_torch_save_line_is_found_after_carriage_returns_or_form_feeds(oddity: str, spec: ScriptSpec) -> None:
    [place] = look(ODDITIES[oddity], spec).saves
    assert place.text == "torch.save(x, 'a.pt')"


@pytest.mark.usefixtures("without_git")
def test_check_accepts_100_files_of_the_standard_library(spec: ScriptSpec) -> None:
    small = [each for each in sorted(STDLIB.glob("*.py")) if each.stat().st_size < 20_000]
    for file in small[:100]:
        look(file.read_bytes(), spec)


@pytest.mark.slow
@pytest.mark.usefixtures("without_git")
def test_check_accepts_5000_files_of_standard_library_and_site_packages(spec: ScriptSpec) -> None:
    files = sorted({*STDLIB.rglob("*.py"), *Path(sysconfig.get_path("purelib")).rglob("*.py")})
    failed = []
    for file in random.Random(1).sample(files, 5000):
        try:
            look(file.read_bytes(), spec)
        except Exception as error:
            failed.append((file, repr(error)))
    assert not failed


def _mutated(text: str, others: list[ast.expr], at: random.Random) -> str:
    """Its expressions are exchanged for some of other programs, and arguments, statements and decorators are lost."""
    tree = ast.parse(text)
    for _ in range(at.randint(1, 6)):
        node = at.choice([*ast.walk(tree)])
        field, value = at.choice([*ast.iter_fields(node), ("", None)])
        if isinstance(value, ast.expr) and not hasattr(value, "ctx"):
            setattr(node, field, copy.deepcopy(at.choice(others)))
        elif isinstance(value, list) and value and field not in ("body", "names", "targets", "generators", "items"):
            del value[at.randrange(len(value))]
        elif field in ("id", "attr", "arg", "name") and isinstance(value, str):
            setattr(node, field, at.choice(["self", "cls", "save", "path", "f", "signal", "x"]))
    try:
        return ast.unparse(tree)
    except Exception:  # not a valid tree
        return text


@pytest.mark.usefixtures("without_git")
def test_check_accepts_mutated_and_truncated_programs(spec: ScriptSpec) -> None:
    at = random.Random(0)
    texts = [text for program in PROGRAMS for text in (program.text, *program.files.values()) if "torch" in text]
    texts = [text for text in texts if not text.startswith(("#!", "exec", "export"))]
    others = [each for text in texts for each in ast.walk(ast.parse(text)) if isinstance(each, ast.expr)]
    others = [each for each in others if not isinstance(each, ast.Starred)]
    for text in texts * 2:
        look(_mutated(text, others, at).encode(), spec)
    for text in texts:  # cut anywhere, in the middle of a word
        look(text.encode()[: at.randrange(len(text))], spec)
