"""`after:` in each form that a config may have."""

from __future__ import annotations

from typing import Any

import pytest

from clusterdp import config
from clusterdp.config.after import read_after
from clusterdp.errors import ConfigError


def given(after: Any) -> config.Config:
    return config.from_mapping({"command": ["echo", "${after.run_dir}"], "after": after})


@pytest.mark.parametrize(
    ("after", "runs"),
    [
        ("runs/a", [("runs/a", "done")]),
        ("any:runs/a", [("runs/a", "any")]),
        (4242, [("4242", "done")]),
        (["each:s", {"run": "b", "state": "started"}], [("s", "each"), ("b", "started")]),
        ({"run": "a:b"}, [("a:b", "done")]),
    ],
)
def test_runs_to_follow_have_one_form_in_the_config(after: Any, runs: list[tuple[str, str]]) -> None:
    found = given(after)
    assert [(each["run"], each["state"]) for each in found.after["runs"]] == runs
    assert found.command == ["echo", runs[0][0]], "${after.run_dir}"
    assert read_after(found.after) == found.after, "as config.yaml has it"


def test_run_dir_without_after_is_an_error_with_remedy() -> None:
    with pytest.raises(ConfigError, match="no run is named"):
        config.from_mapping({"command": ["echo", "${after.run_dir}"]})


@pytest.mark.parametrize("after", [None, [], "", [None]])
def test_empty_after_resolves_to_null(after: Any) -> None:
    assert config.from_mapping({"command": "true", "after": after}).after is None


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({"run": "a", "stat": "any"}, "after: stat: there is no such key. Keep run and state."),
        ({"run": "a", "state": "dne"}, "after: 'dne' is none of done, any, started, each. Write done."),
        ({"state": "any"}, "after: None is not a run. Name a run folder or a job id."),
        ([["a"]], "after: ['a'] is not a run."),
        (True, "after: True is not a run."),
        ("${oc.env:HOME}", "nothing is filled in here. Name it on the command line: --after RUN."),
    ],
)
def test_invalid_after_is_refused_with_its_remedy(after: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        given(after)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"resources": {"extra": {"dependency": "singleton"}}}, "does not go with after"),
        ({"backend": "submitit", "entry": "a:b", "command": None}, "after: submitit writes its own script"),
    ],
)
def test_contradictions_of_after_are_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config.from_mapping({"command": "true", "after": "a", **more})
