"""`defaults:` of a config: the files on which it builds."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp import config
from clusterdp.config.tree import Config
from clusterdp.errors import ConfigError

BASE = "entry: train:main\nparams: {lr: 0.1, epochs: 1}\nresources: {nodes: 2}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "site/a100.yaml").write_text("resources: {gpus_per_node: a100:4}\nparams: {epochs: 2}\n")
    return tmp_path


def written(folder: Path, text: str, name: str = "run.yaml") -> str:
    (folder / name).write_text(text)
    return name


def test_command_line_beats_file_beats_later_defaults_beats_earlier_defaults(folder: Path) -> None:
    file = written(folder, "defaults: [base.yaml, site/a100.yaml]\nresources: {nodes: 4}\n")
    loaded = config.load_with_sources(file, ["params.lr=0.3"])
    assert loaded.config.params == {"lr": 0.3, "epochs": 2}
    assert (loaded.config.resources.nodes, loaded.config.resources.gpus_per_node) == (4, "a100:4")
    assert loaded.config.name == "run"
    assert loaded.sources == {
        "entry": "base.yaml:1",
        "params.lr": "command line",
        "params.epochs": "site/a100.yaml:2",
        "resources.nodes": "run.yaml:2",
        "resources.gpus_per_node": "site/a100.yaml:1",
    }


def test_paths_in_defaults_are_relative_to_their_file(folder: Path) -> None:
    written(folder, "defaults: [../base.yaml]\nname: mine\n", "site/mine.yaml")
    loaded = config.load(written(folder, "defaults: [site/mine.yaml]\n"))
    assert (loaded.name, loaded.entry) == ("mine", "train:main")


def test_recorded_config_has_the_values_of_defaults_not_their_names(folder: Path) -> None:
    text = config.dump(config.load(written(folder, "defaults: [base.yaml]\n")))
    assert "defaults" not in text
    again = config.load(written(folder, text, "again.yaml"))
    assert again.params == {"lr": 0.1, "epochs": 1}
    assert again.defaults == Config().defaults == []


def test_base_config_may_be_included_by_two_files(folder: Path) -> None:
    written(folder, "defaults: [base.yaml]\nparams: {a: 1}\n", "a.yaml")
    written(folder, "defaults: [base.yaml]\nparams: {b: 2}\n", "b.yaml")
    assert config.load(written(folder, "defaults: [a.yaml, b.yaml]\n")).params == {
        "lr": 0.1,
        "epochs": 1,
        "a": 1,
        "b": 2,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("defaults: [base.yaml, none.yaml]", r"^run.yaml:1: defaults: there is no file none.yaml. A path counts from"),
        ("name: x\ndefaults: [run.yaml]", r"^run.yaml:2: defaults: run.yaml leads back to run.yaml. Remove"),
        ("defaults: [loop.yaml]", r"^loop.yaml:1: defaults: run.yaml leads back to run.yaml. Remove"),
        ("defaults: [link.yaml]", r"^run.yaml:1: defaults: link.yaml leads back to link.yaml. Remove"),
        ("defaults: base.yaml", r"^run.yaml:1: defaults: 'base.yaml' is not a list. Write defaults: \[base.yaml\]."),
        ("defaults: [bad.yaml]", r"^bad.yaml:1: resources.node: there is no such key. Did you mean resources.nodes\?"),
        (
            'defaults: [""]',
            r"^run.yaml:1: defaults: '' is not a path. Nothing is filled in there: write a file's name.",
        ),
        ('defaults: ["${oc.env:HOME}/x.yaml"]', r"^run.yaml:1: defaults: '\$.*/x.yaml' is not a path. Nothing is"),
        ("defaults: [site]", r"^run.yaml:1: defaults: there is no file site."),
    ],
)
def test_mistake_in_defaults_is_an_error_with_file_and_line(folder: Path, text: str, said: str) -> None:
    written(folder, "defaults: [run.yaml]\n", "loop.yaml")
    (folder / "link.yaml").symlink_to("run.yaml")
    written(folder, "resources: {node: 2}\n", "bad.yaml")
    with pytest.raises(ConfigError, match=said):
        config.load(written(folder, text))


def test_defaults_key_outside_a_config_file_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^defaults=\[base.yaml\]: only a file can have defaults"):
        config.load("base.yaml", ["defaults=[base.yaml]"])
    with pytest.raises(ConfigError, match=r"^defaults: only a file"):
        config.from_mapping({"entry": "train:main", "defaults": ["base.yaml"]})
