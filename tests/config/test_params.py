"""A value that contradicts the entry's own word is refused before a job waits for hours to fail; what may be right is
not. Each case is asked twice: of the text, as at submit, and of the function itself, as in the job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterdp.errors import EntryError
from clusterdp.submission.entry_check import check_entry
from clusterdp.train.process.entry import check_params

IMPORTS = """
import enum, pathlib, typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Dict, List, Literal, Optional, Tuple, Union
class Color(enum.Enum): RED = "red"
"""
FUTURE = "from __future__ import annotations\n"

Check = Callable[[str, dict[str, Any]], None]


def at_submit(folder: Path) -> Check:
    def check(source: str, params: dict[str, Any]) -> None:
        (folder / "train.py").write_text(source)
        check_entry("train:main", params, folder)

    return check


def in_the_job(folder: Path) -> Check:
    def check(source: str, params: dict[str, Any]) -> None:
        module: dict[str, Any] = {}
        exec(source, module)
        check_params(module["main"], params)

    return check


@pytest.fixture(params=[at_submit, in_the_job], ids=["at submit", "in the job"])
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Check:
    made: Check = request.param(tmp_path)
    return made


FITS: list[tuple[str, list[Any]]] = [
    ("x: float", [0.1, 1, True, float("inf")]),
    ("x: int", [3, 1e3, True]),
    ("x: bool = False", [True, False, 1]),
    ("x: str", ["abc", "", 2024, 0.5]),
    ("x: str = None", [None, "a"]),
    ("x: 'float'", [0.1]),
    ("x: Optional[float]", [None, 1, 0.1]),
    ("x: typing.Optional[float]", [None, 0.1]),
    ("x: float | None", [None, 0.1]),
    ("x: 'float | str'", [0.1, "auto"]),
    ("x: Union[int, str]", [1, "auto"]),
    ("x: Literal['sgd', 'adam', 3]", ["sgd", 3]),
    ("x: Literal[-1, 1]", [-1, 1]),
    ("x: list", [[], [1, "a", None]]),
    ("x: list[float]", [[], [1, 0.5]]),
    ("x: List[int]", [[1]]),
    ("x: Sequence[str]", [["a"], "abc"]),
    ("x: Tuple[int, float]", [[1, 0.5]]),
    ("x: tuple[int, ...]", [[], [1, 2, 3]]),
    ("x: dict[str, float]", [{}, {"a": 1}]),
    ("x: Dict", [{"a": "b"}]),
    ("x: Mapping[str, Any]", [{"a": None}]),
    ("x: Path", ["data/x", 7]),
    ("x: pathlib.Path | None = None", ["data/x", None]),
    ("x: Color = Color.RED", ["red", 1, None]),
    ("x: Any", [None, 1, "a", [1], {}]),
    ("x", [None, 1, "a", [1], {}]),
    ("x=None", [1, "a", [1], {}]),
    ("x=0.1", [1, 0.5, None, [0.1, 0.2]]),
    ("x=1", [0.5, 7, None]),
    ("x=False", [True, 2]),
    ("x='all'", ["a", 3, [1], {}]),
    ("x=(1, 2)", ["a", 3, [1], {}]),
    ("x=Color.RED", ["a"]),
]
CONTRADICTS: list[tuple[str, list[Any]]] = [
    ("x: float = 0.1", ["abc", "0.1,0.01", "0.1", None, [0.1], {}]),
    ("x: int", ["3", 0.5, None, [3]]),
    ("x: bool", ["off", None, []]),
    ("x: str", [["a"], {}, None]),
    ("x: 'float'", ["abc"]),
    ("x: Optional[float]", ["abc", [1]]),
    ("x: float | None = None", ["abc"]),
    ("x: Union[int, float]", ["abc", None]),
    ("x: Literal['sgd', 'adam']", ["sdg", 3]),
    ("x: list[float]", [["a"], 0.1, "0.1,0.2", {}]),
    ("x: Sequence[int]", [3, ["a"], {}]),
    ("x: Tuple[int, int]", [[1], [1, "a"], 3]),
    ("x: tuple[int, ...]", [[1, "a"]]),
    ("x: dict[str, float]", [{"a": "b"}, [1], "a"]),
    ("x: Path", [["a"], {}]),
    ("x=0.1", ["abc", "0.1,0.01", {}]),
    ("x=90", ["abc"]),
    ("x=True", ["flase"]),
]


@pytest.mark.parametrize("future", ["", FUTURE], ids=["", "future"])
def test_params_fitting_annotation_or_default_pass(check: Check, future: str) -> None:
    for parameter, values in FITS:
        for value in values:
            check(f"{future}{IMPORTS}def main(job, *, {parameter}): ...\n", {"x": value})


@pytest.mark.parametrize("future", ["", FUTURE], ids=["", "future"])
def test_params_contradicting_annotation_or_default_are_refused(check: Check, future: str) -> None:
    for parameter, values in CONTRADICTS:
        for value in values:
            with pytest.raises(EntryError) as caught:
                check(f"{future}{IMPORTS}def main(job, *, {parameter}): ...\n", {"x": value})
            assert str(caught.value).startswith(f"params.x: {value!r} is not of type "), parameter


def test_refused_param_is_named_with_value_and_wanted_type(check: Check) -> None:
    with pytest.raises(EntryError, match=r"params\.lr: 'abc' is not of type float, which \S+ takes") as caught:
        check("def main(job, lr: float = 0.1): ...\n", {"lr": "abc"})
    assert "\n" not in str(caught.value)
    said = r"is not of type float, like its default 0\.1 in .*annotate lr.*A list is .*--sweep params\.lr=0\.1,0\.01\."
    with pytest.raises(EntryError, match=said):
        check("def main(job, lr=0.1): ...\n", {"lr": "0.1,0.01"})


@pytest.mark.parametrize("takes", ["lr=1", "lr: float", "lr: 'float' = 0.1", "name: str, job=None", "sizes: list[int]"])
def test_entry_with_a_param_as_first_argument_is_refused(check: Check, takes: str) -> None:
    with pytest.raises(EntryError, match=r"takes \w+ first, which would get the job handle\. Put job before"):
        check(f"def main({takes}): ...\n", {})


def test_params_may_not_set_the_parameter_of_the_job_handle(check: Check) -> None:
    with pytest.raises(EntryError, match=r"params\.lr: \S+ takes lr first, where it gets the job handle"):
        check("def main(lr, epochs=3): ...\n", {"lr": 0.1})


@pytest.mark.parametrize(
    "takes", ["job", "job=None", "job: Any", "handle: 'JobHandle', x=1", "_, /, x=1", "*all", "j, **x"]
)
def test_first_parameter_of_any_name_may_take_the_job_handle(check: Check, takes: str) -> None:
    check(f"{IMPORTS}def main({takes}): ...\n", {})


def test_entry_without_a_positional_parameter_is_refused(check: Check) -> None:
    with pytest.raises(EntryError, match="job handle"):
        check("def main(*, lr): ...\n", {"lr": 0.1})


def test_params_of_a_decorated_main_are_not_type_checked(check: Check) -> None:
    wraps = "import functools\ndef convert(f): return functools.wraps(f)(lambda *a, **k: f(*a, **k))\n"
    check(f"{wraps}@convert\ndef main(job, lr: float): ...\n", {"lr": "0.1"})
