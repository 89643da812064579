"""A wrong entry or parameter is found out in seconds, once, and in one line; not after a day in the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterdp.errors import ConfigError, EntryError
from clusterdp.train.process import entry
from clusterdp.train.settings import parse_words


def main(job: Any, epochs: int, lr: float = 0.1, *, amp: str = "fp16") -> None: ...


def takes_all(job: Any, **params: Any) -> None: ...


def takes_nothing() -> None: ...


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "users_module.py"


def test_entry_load_returns_a_function_by_module_and_name(module: Path) -> None:
    module.with_name("good_module.py").write_text("def train(job): return 7")
    assert entry.load("good_module:train")(None) == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("users_module", "not of the form package.module:function"),
        ("no_such_module:main", "no module 'no_such_module' here"),
        ("clusterdp.no_such:main", "no module 'clusterdp.no_such' here"),
        ("clusterdp.train.process.entry:laod", "no function 'laod'. Did you mean load?"),
        ("clusterdp.train.process.entry:Path", None),
    ],
)
def test_unloadable_entry_is_a_one_line_error_but_any_callable_loads(text: str, message: str | None) -> None:
    if message is None:
        entry.load(text)  # callable, if odd
        return
    with pytest.raises(EntryError, match=r"^entry: ") as caught:
        entry.load(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        (
            "imports_missing",
            "import os\nimport no_such_thing_at_all",
            "No module named 'no_such_thing_at_all' (FILE, line 2)",
        ),
        ("has_syntax_error", "def main(:", "SyntaxError"),
        ("raises", "x = 1\n\n1 / 0", "ZeroDivisionError: division by zero (FILE, line 3)"),
    ],
)
def test_entry_module_failing_at_import_is_an_error_with_its_cause(
    module: Path, name: str, source: str, said: str
) -> None:
    file = module.with_name(f"{name}.py")
    file.write_text(source)
    with pytest.raises(EntryError) as caught:
        entry.load(f"{name}:main")
    assert said.replace("FILE", str(file)) in str(caught.value)
    assert f"entry: {name} does not import" in str(caught.value)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"epochs": 1, "lrr": 0.1}, "params.lrr: main() takes no such parameter. Did you mean params.lr?"),
        ({"epochs": 1, "batch": 2}, "params.batch: main() takes no such parameter. It takes epochs, lr, amp."),
        ({"lr": 0.1}, "params.epochs: main() needs it. Give it a value in params, or a default in main()."),
        (
            {"epochs": 1, "job": 2},
            "params.job: main() takes job first, where it gets the job handle. Leave it out, or put job before job.",
        ),
    ],
)
def test_unknown_missing_or_reserved_params_are_errors_with_their_key(params: dict[str, Any], message: str) -> None:
    with pytest.raises(EntryError) as caught:
        entry.check_params(main, params)
    assert str(caught.value) == message


def test_params_matching_the_entry_signature_are_accepted() -> None:
    entry.check_params(main, {"epochs": 3, "amp": "bf16"})
    entry.check_params(takes_all, {"anything": 1})


def test_entry_without_a_job_parameter_is_refused() -> None:
    with pytest.raises(EntryError, match="cannot be called"):
        entry.check_params(takes_nothing, {})


def test_parse_words_reads_values_like_a_config_and_refuses_invalid_ones() -> None:
    assert parse_words(["epochs=3", "lr=1e-1", "amp=fp16", "name=a=b"]) == {
        "epochs": 3,
        "lr": 0.1,
        "amp": "fp16",
        "name": "a=b",
    }
    with pytest.raises(ConfigError, match="epochs: is not of the form key=value"):
        parse_words(["epochs"])
    for value in ("[", "9" * 5000, "2026-99-99", "[" * 2000):
        with pytest.raises(ConfigError, match="its value is not YAML"):
            parse_words([f"epochs={value}"])
