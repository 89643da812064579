"""Wrong values of every key, wrong words of every verb: one line that says where, what, and what to do."""

from __future__ import annotations

import json
import re
import typing
from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml

from clusterdp import config
from clusterdp.cli import arguments, main
from clusterdp.cli.parser import FOREIGN as FOREIGN_VERBS
from clusterdp.config import Config
from clusterdp.config.explain import KeyExplanation, explain, explanations
from clusterdp.config.value_types import misfits
from clusterdp.errors import ConfigError

KEYS = {one.key: one for one in explanations()}
# Words of libraries, which mean nothing to a user.
FOREIGN = re.compile(
    r"omegaconf|AnyNode|ListConfig|DictConfig|NoneType|Optional|primitive|Traceback|KeyError|TypeError|ValueError|"
    r"object_type|full_key|<class|argparse|expected one argument|invalid choice"
)
WRONG = {  # YAML, by the type that a key wants
    "int": ["two", "1.5", "[1]", "{a: 1}", "true", '"4"'],
    "float": ["10m", "[1.0]", "{a: 1}", "true", ".nan"],
    "str": ["[a]", "{a: 1}", "[[a]]", "[]", "{}"],
    "bool": ["maybe", "1", "[true]", "{a: true}", "2.0"],
    "list": ["word", "3", "{a: 1}", "true", "[[a]]"],
    "dict": ["word", "3", "[a]", "true", "[[a]]"],
}
# What is of the right type, and wrong all the same.
WRONG_VALUES = {
    "name": [],
    "entry": ["train.py:main", "train", "train:main()", "a b:c", ":main"],
    "command": ["{a: 1}", "[[a]]"],
    "script": ["[{a: 1}]", "{a: 1}"],
    "backend": ["slurm", "sbtach"],
    "resources.nodes": [
        "two",
        "1.5",
        "[2, 8]",
        "{a: 1}",
        "true",
        "",
        "0",
        "-1",
        "8-2",
        "2-",
        "2,,4",
        "2-8",
        "2-8:2",
        "2 8",
    ],
    "resources.cpus_per_task": ["0"],
    "resources.tasks_per_node": ["0"],
    "resources.mem": ["lots", "4 GB", "64 G", "-3", "1.5G"],
    "resources.time": ["soon", "4:99:00", "1h", "-5", "1-2-3"],
    "resources.gpus_per_node": ["many", "a100", "-1"],
    "resources.extra": ["{array: 0-3}", "{output: x}", "{--mail-type: END}", "{nodes: 3}"],
    "launch.launcher": ["mpirun", "torchrunn"],
    "launch.signal": ["FOO@60", "USR2@soon", "B:USR2", "99", "USR2@"],
    "launch.setup": ["[[a]]", "{a: b}"],
    "launch.grace_s": ["0", "-1"],
    "launch.env": ["{1A: x}", "{A-B: x}"],
    "launch.container.runtime": ["docker", "pyxiss"],
    "snapshot.max_mb": ["0"],
    "checkpoint.every_s": ["0", "-3"],
    "checkpoint.every_steps": ["0"],
    "checkpoint.keep_last": ["0"],
    "checkpoint.max_failures": ["-1"],
    "after": ["true", "{run: a, state: dun}", "[[a]]", "{state: any}"],
    "run_dir": ["$SCRATCH/x", "file:/x"],
    "checkpoint.url": ["s3://", "file:///", "s3:/bucket/run", "$(pwd)/x"],
    "launch.container.image": ["$HOME/x.sif", "docker:/x/y"],
    "restart.max_crashes": ["-1"],
    "restart.max_no_progress": ["-1"],
    "notify.on": ["[fail]", "[failure, ends]", "[end]"],
    "notify.webhook_file": ["https://hooks.example.org/x"],
    "notify.command": ['[""]', "[curl, https://hooks.slack.com/services/T0/B0/x]"],
    "train.strategy": ["dpp", "zero"],
    "train.on_nan": ["raise"],
    "train.amp.level": ["O4", "fp8"],
    "train.accumulate": ["0"],
    "train.exact": ["any"],
    "train.timeout_s": ["0"],
    "metrics.to": ["[tensorbord]", "[csv]"],
    "metrics.every_s": ["0"],
    "profile.find": ["loader"],
    "local.preempt_at": ["0", "1", "2"],
}
NO_TYPE = {
    "resources.nodes",
    "after",
    "command",
    "script",
    "launch.setup",
    "train.amp.loss_scale",
    "train.compile",
}  # of several


def kind_of(one: KeyExplanation) -> str:
    return re.split(r"[\[ ]", one.kind)[0]


def cases() -> typing.Iterator[tuple[str, str]]:
    for key, one in KEYS.items():
        if key not in NO_TYPE:
            yield from ((key, value) for value in WRONG[kind_of(one)])
        yield from ((key, value) for value in WRONG_VALUES.get(key, ()))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.delenv("CLUSTERDP_SITE", raising=False)


def text_of(key: str, value: str) -> str:
    """A YAML file in which this key stands on the last line."""
    *above, last = key.split(".")
    lines = [] if key in ("entry", "command", "script") else ["entry: train:main"]
    lines += [f"{'  ' * depth}{name}:" for depth, name in enumerate(above)]
    return "\n".join([*lines, f"{'  ' * len(above)}{last}: {value}"]) + "\n"


@pytest.mark.parametrize(("key", "value"), list(cases()))
def test_wrong_value_error_has_place_key_and_remedy(key: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "cfg.yaml"
    path.write_text(text_of(key, value))
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    said = str(caught.value).removeprefix(str(tmp_path))
    assert "\n" not in said
    assert re.match(rf"/cfg.yaml:\d+: {re.escape(key)}\b", said), said
    assert said.endswith((".", "?"))
    assert len(re.findall(r"[.?](?= [A-Z]|$)", said)) >= 2, f"no remedy: {said}"
    assert not FOREIGN.search(said), said
    assert len(said) < 300


def test_wrong_value_makes_submit_exit_2_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cfg.yaml"
    path.write_text(text_of("resources.nodes", "two"))
    assert main(["submit", str(path), "--dry-run"]) == 2
    assert capsys.readouterr().err == (
        f"clusterdp: {path}:3: resources.nodes: 'two' is not a number of nodes, nor a range or a list. "
        "Write nodes: 4, a range such as 2-8, or a list such as 2,4,8.\n"
    )


def test_empty_section_equals_an_omitted_one(tmp_path: Path) -> None:
    (tmp_path / "cfg.yaml").write_text("entry: train:main\nparams:\nresources:\nlaunch: {modules: , env: }\n")
    loaded = config.load(tmp_path / "cfg.yaml")
    assert (loaded.params, loaded.launch.modules, loaded.launch.env) == ({}, [], {})


ODD = {
    "params: {a: &x [*x]}": "refers to itself",
    "params: " + "[" * 2000 + "]" * 2000: "nest",  # PyYAML 6.0.4 refuses it itself
    "params: {<<: {a: 1}}": "merge keys are not read",
    "params: {? [a] : 1}": "a key there is a list",
    "params: {n: " + "9" * 5000 + "}": "it cannot be read as a value",
    "params: {d: 2024-01-01}": 'read as a date. Put it in quotes: "2024-01-01"',
    "params: {d: 2024-13-41}": "it cannot be read as a value",
    "params: {b: !!binary aGk=}": "of YAML's type bytes",
    "params: [1, 2]": "is not a mapping",
    "checkpoint: {every_s: 10m}": "It counts seconds: write 600",
}


@pytest.mark.parametrize("text", ODD)
def test_valid_yaml_unfit_for_a_config_is_a_one_line_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "cfg.yaml").write_text(f"entry: train:main\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        config.load(tmp_path / "cfg.yaml")
    assert ODD[text] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_exponential_yaml_aliases_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    (tmp_path / "cfg.yaml").write_text("params:\n  " + "\n  ".join(lines) + "\n")
    with pytest.raises(ConfigError, match="nested too deeply"):
        config.load(tmp_path / "cfg.yaml")


WORDS = {  # what is typed, and what the answer has
    ("sumbit", "x.yaml"): "sumbit: there is no such verb. Did you mean submit?",
    ("stauts",): "Did you mean status?",
    ("xyzzy",): "`clusterdp --help` lists all",
    ("run", "x.yaml"): "run: there is no such verb. Write `clusterdp submit`.",
    ("start", "x.yaml"): "Write `clusterdp submit`.",
    ("remove", "x"): "Write `clusterdp rm`.",
    ("submit", "-c", "local", "x.yaml"): "-c: there is no such option. Did you mean --cluster?",
    ("submit", "x.yaml", "--local"): "--local: there is no such option. Did you mean --cluster local?",
    ("resume", "4", "--step", "3"): "--step: there is no such option. Did you mean --from?",
    ("submit", "x.yaml", "--params.lr", "3"): "are words: params.lr=3.",
    ("rehearse", "x.yaml", "--skip", "preempted"): "are words: rehearse.skip=[preempted].",
    ("submit", "train.py"): "train.py: is a program. Write a YAML file with `command: python train.py`, and name th",
    ("submit",): "CFG.yaml is missing. Write e.g. clusterdp submit",
    ("submit", "x.yaml", "--nodes", "3"): "are words: resources.nodes=3.",
    ("submit", "x.yaml", "--cpus-per-task=3"): "are words: resources.cpus_per_task=3.",
    ("submit", "x.yaml", "--dry_run"): "Did you mean --dry-run?",
    ("submit", "x.yaml", "--cluster", "here"): "--cluster: 'here' is none of auto, slurm, local",
    ("submit", "x.yaml", "--frobnicate"): "is not expected here",
    ("submit", "nosuch.yaml"): "No such file or directory. Name a YAML file.",
    ("submit", "configs/digits.yaml", "+params.lr=3", "--dry-run"): "Write params.lr=3.",
    ("submit", "configs/digits.yaml", "params.lr", "--dry-run"): "is not key=value",
    ("submit", "configs/digits.yaml", "nodes=3", "--dry-run"): "Did you mean resources.nodes?",
    ("show",): "CFG.yaml: is missing",
    ("show", "--explain", "nodes"): "Did you mean resources.nodes?",
    ("show", "--explain", "checkpoint.evry_s"): "Did you mean checkpoint.every_s?",
    ("profile", "x.yaml", "--steps", "many"): "--steps: 'many' is not a whole number",
    ("profile", "x.yaml", "--steps"): "--steps: has no value",
    ("logs", "--rank", "x"): "--rank: 'x' is not a list of ranks. Write e.g. 3 or 0,3,8-15.",
    ("configs", "digts"): "digits",
    ("configs", "digts", "--to", "nowhere"): "digits",
    ("configs", "--to", "nowhere"): "NAME: is missing. Write e.g. clusterdp configs gan --to DIR.",
    ("configs", "gan", "--to", "configs/gan.yaml/x"): "x/gan.yaml: cannot be written: Not a directory.",
    ("resume", "--from"): "--from: has no value",
    ("checkpoint",): "is missing",
    ("checkpoint", "lst"): "Did you mean ls?",
    ("checkpoint", "diff"): "WHAT is missing",
    ("fake", "upp"): "Did you mean up?",
    ("fake", "preempt"): "JOB is missing",
    ("fake", "kill-rank", "1", "x"): "RANK: 'x' is not a whole number",
}


@pytest.mark.parametrize("words", WORDS)
def test_wrong_command_line_words_are_answered_in_one_line(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(words)
    except SystemExit as leaving:
        code = leaving.code  # type: ignore[assignment]
    said = capsys.readouterr().err
    assert code in (2, 4)
    assert said.count("\n") == 1, said
    assert said.startswith("clusterdp")
    assert WORDS[words] in said, said
    assert not FOREIGN.search(said), said


def test_foreign_verb_table_maps_unknown_words_to_existing_verbs() -> None:
    verbs = {each.name for each in arguments.VERBS}
    assert {line.split()[0] for line in FOREIGN_VERBS.splitlines()} <= verbs | {"--help", "--version"}
    words = [word for line in FOREIGN_VERBS.splitlines() for word in line.split()[1:]]
    assert len({*words}) == len(words)
    assert not verbs & {*words}


@pytest.mark.parametrize("key", KEYS)
def test_each_config_key_has_a_meaning_and_a_valid_example(key: str) -> None:
    one = KEYS[key]
    assert len(one.meaning) > 3
    assert one.example
    hint: Any = Config
    for name in key.split("."):
        hint = typing.get_type_hints(hint)[name]
    value = yaml.safe_load(f"[{one.example}]" if one.kind.startswith("str") and "[" not in one.example else one.example)
    if kind_of(one) in ("int", "float", "bool", "list", "dict"):
        assert not list(misfits(value, hint, key))
        assert value != one.default, "an example shows something else than the default"
    assert f"{key}\n" in explain(key)


def test_explain_prints_a_meaning_of_several_lines_whole() -> None:
    said = explain("restart.hang_after_s")
    assert "\n    After so many seconds without progress" in said
    assert "prints nothing and uses no CPU time\n    e.g. hang_after_s: 600" in said


def test_explain_without_key_lists_each_key_once() -> None:
    told = [line for line in explain().splitlines() if not line.startswith(" ")]
    assert told == [*KEYS, "on", "remote.folder", "remote.python"]
    assert (
        explain("checkpoint").count("\ncheckpoint.") == len([key for key in KEYS if key.startswith("checkpoint.")]) - 1
    )


def test_explain_prints_units() -> None:
    assert "seconds" in explain("checkpoint.every_s")
    assert "megabytes" in explain("snapshot.max_mb")


VERBS = [each.name for each in arguments.VERBS if each.name not in ("checkpoint", "fake")]
VERBS += [f"checkpoint {verb}" for verb in ("ls", "verify", "diff", "export", "prune")]
VERBS += [f"fake {verb}" for verb in ("up", "down", "status", "env", "preempt", "fail", "slow", "advance")]


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_verb_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])
    _, _, example = capsys.readouterr().out.partition("\nexample: ")
    assert f"clusterdp {verb}" in example.splitlines()[0]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("mail me", "[mail, me]"),
        ("mail -s 'a run' me@x", '[mail, -s, "a run", "me@x"]'),
        ("mail 'me", '["mail \'me"]'),
    ],
)
def test_notify_command_as_one_string_is_refused_with_the_list_to_write(text: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"is not a list. Write command: {remedy}")):
        config.from_mapping({"command": "true", "notify": {"command": text}})


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("gpus", "Write resources.gpus_per_node"),
        ("resources.gpus", "Write resources.gpus_per_node"),
        ("num_nodes", "Write resources.nodes: a number, a range such as 2-8"),
        ("ntasks", "Write resources.tasks_per_node"),
        ("resources.ntasks_per_node", "Write resources.tasks_per_node"),
        ("mail_user", "Write resources.extra: {mail-user: ...}."),
        ("resources.mail_type", "Write resources.extra: {mail-type: ...}."),
        ("output", "Leave it out: each rank has a log"),
        ("resources.error", "Leave it out: each rank has a log"),
        ("mem", "resources.mem"),
        ("walltime", "Write resources.time."),
        ("queue", "Write resources.partition."),
        ("devices", "Write resources.gpus_per_node"),
        ("launch.nproc_per_node", "Write resources.gpus_per_node"),
        ("job_name", "Write name."),
        ("slurm_partition", "resources.partition"),
        ("train.epochs", "Write params.epochs."),
        ("total_train_batch_size", "Write train.global_batch_size: samples of a step, on any number of ranks"),
        ("train.global_train_batch_size", "Write train.global_batch_size"),
        ("train.micro_batch_size", "Write params.micro_batch_size."),
        ("nodes", "Did you mean resources.nodes?"),
        ("resources.node", "Did you mean resources.nodes?"),
    ],
)
def test_key_of_another_tool_is_refused_with_its_remedy(key: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.from_mapping({"entry": "train:main"}, [f"{key}=1"])
    assert str(caught.value).startswith(f"command line: {key}: there is no such key. ")
    assert remedy in str(caught.value)


def test_foreign_key_table_maps_unknown_keys_to_existing_keys() -> None:
    from clusterdp.config.foreign_keys import KEYS as foreign
    from clusterdp.config.foreign_keys import LOGS, OPTIONS, PARAMS

    sections = {key.partition(".")[0] for key in KEYS}
    assert set(foreign) <= {*KEYS, *sections}
    top = {key for key in KEYS if "." not in key} | sections
    names = {name for names in foreign.values() for name in names.split()} | LOGS | OPTIONS | PARAMS
    assert not names & top
    assert not names & {key.partition(".")[2] for key in KEYS if key.startswith(("resources.", "launch."))}


def test_config_from_standard_input_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-"]) == 2
    assert capsys.readouterr().err == "clusterdp: -: a config is not read from the standard input. Name a YAML file.\n"


@pytest.mark.parametrize(
    ("value", "key", "kind"),
    [
        ({"a", "b"}, "", "set"),
        ([1, {2}], "[1]", "set"),
        ({"a": frozenset()}, ".a", "frozenset"),
        (range(3), "", "range"),
    ],
)
def test_python_value_without_a_form_in_yaml_is_refused(value: Any, key: str, kind: str) -> None:
    """PyYAML writes a set as a mapping without values."""
    with pytest.raises(ConfigError) as caught:
        config.from_mapping({"entry": "train:main", "params": {"lr": value}})
    assert str(caught.value) == f"Python: params.lr{key}: is a {kind}. Write text, a number, a list or a mapping."


def test_numbers_of_numpy_are_numbers_in_a_config() -> None:
    params = {"lr": numpy.float64(0.5), "layers": numpy.int64(3), "sizes": (numpy.int32(1), 2)}
    read = config.from_mapping({"entry": "train:main", "params": params}).params
    assert json.dumps(read, sort_keys=True) == '{"layers": 3, "lr": 0.5, "sizes": [1, 2]}'
