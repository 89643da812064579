"""Reading a config: precedence, types, and one clear line for each mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from clusterdp import config
from clusterdp.errors import ConfigError

MINIMAL = "entry: train:main\n"


@pytest.fixture(autouse=True)
def _no_site_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.delenv("CLUSTERDP_SITE", raising=False)


def load(tmp_path: Path, text: str, *overrides: str) -> config.Config:
    path = tmp_path / "cfg.yaml"
    path.write_text(text)
    return config.load(path, overrides)


def mistake(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(tmp_path), "")


def test_command_line_beats_file_and_file_beats_site_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("resources: {partition: site, account: site, qos: site}\n")
    monkeypatch.setenv("CLUSTERDP_SITE", str(site))
    (tmp_path / "cfg.yaml").write_text(MINIMAL + "resources: {partition: file, account: file}\n")
    loaded = config.load_with_sources(tmp_path / "cfg.yaml", ["resources.partition=word"])
    resources = loaded.config.resources
    assert (resources.partition, resources.account, resources.qos, resources.nodes) == ("word", "file", "site", 1)
    assert loaded.sources["resources.partition"] == "command line"
    assert loaded.sources["resources.account"].endswith("cfg.yaml:2")
    assert loaded.sources["resources.qos"].endswith("site.yaml:1")
    assert "resources.nodes" not in loaded.sources


def test_yaml_scalars_for_text_keys_keep_their_spelling(tmp_path: Path) -> None:
    c = load(
        tmp_path,
        "command: [prog, 1e-3, yes, 010, 2:00:00, ~x, 1.0]\n"
        "resources: {time: 2:00:00, account: no, partition: 0123, mem: 010}\n"
        "launch: {env: {A: 1e-3, B: true, C: 0x10, D: ''}}\n",
    )
    assert c.command == ["prog", "1e-3", "yes", "010", "2:00:00", "~x", "1.0"]
    r = c.resources
    assert (r.time, r.account, r.partition, r.mem) == ("2:00:00", "no", "0123", "010")
    assert c.launch.env == {"A": "1e-3", "B": "true", "C": "0x10", "D": ""}


def test_params_take_values_of_any_shape_and_interpolations(tmp_path: Path) -> None:
    c = load(
        tmp_path,
        MINIMAL + "params:\n  lr: 1e-3\n  size: [1, {a: null}]\n  half: ${params.lr}\n  who: ${oc.env:HOME}\n",
        "params.lr=5e-1",
        "params.new.deep=[x, 2]",
    )
    import os

    assert c.params == {
        "lr": 0.5,
        "size": [1, {"a": None}],
        "half": 0.5,
        "who": os.environ["HOME"],
        "new": {"deep": ["x", 2]},
    }


def test_dumped_config_reads_back_unchanged(tmp_path: Path) -> None:
    import dataclasses

    c = load(
        tmp_path, MINIMAL + 'params: {a: "x: #\\n\\t", b: .inf, c: "2:00:00", d: "no"}\n', "resources.time=1:00:00"
    )
    path = tmp_path / "resolved.yaml"
    path.write_text(config.dump(c))
    assert config.read_resolved(path) | {"defaults": []} == dataclasses.asdict(c)


NO_CONFIG = {"a: 1\nb: {c: ]": ":2", "a: 1\na\0": "", "": "", "- a\n": "", "7": "", "\xff": "", "a: " + "9" * 5000: ""}


@pytest.mark.parametrize(("text", "line"), NO_CONFIG.items(), ids=range(len(NO_CONFIG)))
def test_invalid_config_of_a_run_folder_is_refused_with_its_path(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=rf"config\.yaml{line}: is not the config of a run"):
        config.read_resolved(path)


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: " + "[" * 200, "- " * 5000, "a: " + "[" * 100_000], ids=range(4))
def test_too_deeply_nested_config_of_a_run_folder_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml(:\d+)?: is (nested too deeply|not the config of a run)"):
        config.read_resolved(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL + "resource:\n  nodes: 2\n", "cfg.yaml:2: resource: there is no such key. Did you mean resources?"),
        (
            MINIMAL + "resources:\n  node: 2\n",
            "cfg.yaml:3: resources.node: there is no such key. Did you mean resources.nodes?",
        ),
        (MINIMAL + "nodes: 2\n", "cfg.yaml:2: nodes: there is no such key. Did you mean resources.nodes?"),
        (MINIMAL + "zzz: 2\n", "cfg.yaml:2: zzz: there is no such key. Keys of the top level: name, entry,"),
        (MINIMAL + "resources: {nodes: two}\n", "cfg.yaml:2: resources.nodes: 'two' is not a number of nodes,"),
        (MINIMAL + "resources: {nodes: 0}\n", "cfg.yaml:2: resources.nodes: 0 is not a number of nodes,"),
        (MINIMAL + "resources: 3\n", "cfg.yaml:2: resources: has keys of its own, not a value."),
        (MINIMAL + "resources: {time: 5m}\n", "resources.time: '5m' is not a time limit that Slurm knows."),
        (MINIMAL + "name: a\nname: b\n", "cfg.yaml:3: name: is there twice."),
        (MINIMAL + "command: x\n", "cfg.yaml:2: command: one of entry, command, script says what runs"),
        ("name: x\n", "entry: one of entry, command, script says what runs; there is none."),
        ("entry: train\n", "cfg.yaml:1: entry: 'train' is not package.module:function."),
        ("entry: ???\n", "entry: has no value (???). Give one: entry=VALUE."),
        (MINIMAL + "backend: pbs\n", "cfg.yaml:2: backend: 'pbs' is none of sbatch, submitit."),
        ("command: x\nbackend: submitit\n", "backend: submitit runs Python functions."),
        (MINIMAL + "launch: {env: {A-B: x}}\n", "launch.env.A-B: is not the name of an environment variable."),
        (MINIMAL + "launch: {env: {WANDB_API_KEY: x}}\n", "launch.env.WANDB_API_KEY: is a secret by its name"),
        (MINIMAL + "launch: {signal: B:USR1@3}\n", "launch.signal: 'B:USR1@3' is not NAME[@SECONDS]."),
        (MINIMAL + "resources: {extra: {output: x}}\n", "resources.extra.output: is set by clusterdp."),
        (MINIMAL + "resources: {extra: {partition: x}}\n", "Write resources.partition."),
        (MINIMAL + "train: {strategy: zero}\n", "cfg.yaml:2: train.strategy: 'zero' is none of ddp, fsdp, hsdp, dp."),
        (MINIMAL + "train: {comm_hook: int8}\n", "'int8' is none of fp16, bf16, powersgd. Write one of these."),
        (MINIMAL + "train: {amp: {level: O4}}\n", "train.amp.level: 'O4' is none of O0, O1, O2, O3, bf16"),
        (MINIMAL + "train: {amp: {scale: 2}}\n", "cfg.yaml:2: train.amp.scale: there is no such key."),
        (MINIMAL + "train: {accumulate: 0}\n", "train.accumulate: 0 is less than 1."),
        (MINIMAL + "train: {global_batch_size: 0}\n", "train.global_batch_size: 0 is less than 1."),
        (
            MINIMAL + "train: {global_batch_size: 32, accumulate: 2}\n",
            "train.accumulate: train.global_batch_size says how many batches a step of the optimizer has. Leave one",
        ),
        (
            MINIMAL + "train: {exact: any_ranks}\n",
            "train.exact: any_ranks needs steps that are the same on any number of ranks. Set train.global_batch_size",
        ),
        (MINIMAL + "train: {exact: any_rank}\n", "train.exact: 'any_rank' is none of same_ranks, any_ranks. Write any"),
        *(
            (
                MINIMAL + f"train: {{global_batch_size: 32, exact: any_ranks, {given}}}\n",
                f"train.{key}: does not go with train.exact: any_ranks, because ",
            )
            for key, given in {
                "strategy": "strategy: fsdp",
                "comm_hook": "comm_hook: bf16",
                "sync_batchnorm": "sync_batchnorm: true",
                "ddp.find_unused_parameters": "ddp: {find_unused_parameters: true}",
            }.items()
        ),
        (
            MINIMAL + "train: {global_batch_size: 32, ddp: {static_graph: true}}\n",
            "train.ddp.static_graph: does not go with train.global_batch_size",
        ),
        (MINIMAL + "train: {clip_norm: 1, clip_value: 1}\n", "train.clip_value: gradients are clipped by norm or by"),
        (MINIMAL + "train: {compile: fast}\n", "train.compile: 'fast' is neither true nor arguments."),
        (MINIMAL + "train: {fsdp: {units: [A]}}\n", "train.fsdp: has no effect where train.strategy is ddp."),
        (MINIMAL + "train: {powersgd: {random_seed: 1}}\n", "train.powersgd: has no effect without train.comm_hook"),
        (MINIMAL + "train: {comm_hook: powersgd, amp: {level: O1}}\n", "train.comm_hook: powersgd cannot skip a step"),
        (MINIMAL + "train: {comm_hook: powersgd, on_nan: skip}\n", "train.comm_hook: powersgd cannot skip a step"),
        (
            MINIMAL + "train: {comm_hook: powersgd, amp: {level: bf16, loss_scale: dynamic}}\n",
            "powersgd cannot skip a step",
        ),
        (MINIMAL + "train: {strategy: fsdp, amp: {level: O2}}\n", "train.amp.level: O2 halves the weights, and fsdp"),
        (MINIMAL + "resources: {extra: {--x: y}}\n", "is not a long option of sbatch."),
        (MINIMAL + "params:\n\tlr: 1\n", "cfg.yaml:3: begins with a tab. YAML takes blanks alone there"),
        (
            MINIMAL + "params: {x: [1, 010]}\n",
            '010 is 8 to YAML, because of the 0 in front. Write 10, or "010"',
        ),
        (MINIMAL + "resources: {nodes: 012}\n", "cfg.yaml:2: resources.nodes: 012 is 10 to YAML"),
        (MINIMAL + "sweep: {params.x: [1, 2]}\n", "Write it below grid: sweep: {grid: {params.x: [...]}}"),
        ("command: [a, [b]]\n", 'cfg.yaml:1: command: word 2 is ["b"], and not text. Put it in quotes.'),
        ("command: [a, ~]\n", "cfg.yaml:1: command: word 2 is null, and not text. Put it in quotes."),
        ("script: [a, {b: c}]\n", 'cfg.yaml:1: script: line 2 is {"b": "c"}, and not text.'),
        (MINIMAL + "a: [\n", "cfg.yaml:3: is not YAML:"),
        ("- a\n- b\n", "cfg.yaml:1: is not a mapping."),
        (
            MINIMAL + "resources:\n\u00a0 nodes: 2\n",
            "cfg.yaml:3: has the character U+00A0, which only looks like a blan",
        ),
        (
            MINIMAL + "resources:\n  nodes:\u00a02\n",
            "cfg.yaml:3: has the character U+00A0, which only looks like a blan",
        ),
        (MINIMAL + "# a\u00a0b\nzzz: 2\n", "cfg.yaml:3: zzz: there is no such key."),
        (MINIMAL + "local: {preempt_at: 50%}\n", "'50%' is not a number. Write preempt_at: a number, such as 0.5."),
        (MINIMAL + "params: {x: '${SCRATCH}'}\n", "cfg.yaml:2: params.x: ${SCRATCH} names no key of this file."),
        (
            "script: 'echo ${HOME:0:3}'\n",
            "write ${oc.env:HOME} to fill it in at submit, or \\${HOME} to leave it to the shell",
        ),
        ("script: 'echo ${#a[@]}'\n", "For a shell, write \\${...}."),
    ],
)
def test_config_mistake_is_one_line_with_place_key_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    assert message in mistake(tmp_path, text)


def test_mistake_on_the_command_line_names_the_command_line(tmp_path: Path) -> None:
    assert mistake(tmp_path, MINIMAL, "resources.nodes=x").startswith("command line: resources.nodes: ")
    assert mistake(tmp_path, MINIMAL, "lr").startswith("lr: is not key=value.")
    assert mistake(tmp_path, MINIMAL, "params.x=[1").startswith("command line, params.x")


@pytest.mark.parametrize(
    ("word", "layers"),
    [
        ("params.layers.0=128", [128, {"n": 32}]),
        ("params.layers.1.n=16", [64, {"n": 16}]),
        ("params.layers={a: 1}", {"a": 1}),
        (
            "params.layers.2=1",
            "params.layers.2: params.layers is a list of 2, counted from 0. Write all of it: params.l",
        ),
        ("params.layers.a=1", "params.layers.a: params.layers is a list of 2, counted from 0."),
    ],
)
def test_word_with_a_number_sets_an_item_of_a_list(tmp_path: Path, word: str, layers: Any) -> None:
    text = MINIMAL + "params: {layers: [64, {n: 32}]}\n"
    if isinstance(layers, str):
        assert mistake(tmp_path, text, word).startswith(layers)
    else:
        assert load(tmp_path, text, word).params == {"layers": layers}


def test_missing_or_binary_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        config.load(tmp_path / "none.yaml")
    (tmp_path / "bin.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"bin\.yaml: cannot be read: it is not UTF-8"):
        config.load(tmp_path / "bin.yaml")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("name: x\n".encode("utf-16"), r"but UTF-16, as it seems\. Save it as UTF-8: iconv -f UTF-16"),
        ("name: caf\xe9\n".encode("latin-1"), r"but ISO-8859-1, as it seems\. Save it as UTF-8"),
    ],
)
def test_non_utf_8_config_is_refused_with_its_probable_encoding(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "cfg.yaml").write_bytes(data)
    with pytest.raises(ConfigError, match=rf"cfg\.yaml: cannot be read: it is not UTF-8 text, {said}"):
        config.load(tmp_path / "cfg.yaml")


def test_escaped_dollar_reaches_the_shell(tmp_path: Path) -> None:
    assert load(tmp_path, "script: 'echo \\${HOME} $USER'\n").script == "echo ${HOME} $USER"


@pytest.mark.parametrize(
    ("config_file", "entry", "wanted"),
    [
        ("conf/a.yaml", "beside:main", "conf.beside:main"),
        ("conf/deep/a.yaml", "inner:main", "conf.deep.inner:main"),
        ("conf/a.yaml", "deep.inner:main", "conf.deep.inner:main"),
        ("conf/a.yaml", "package:main", "conf.package:main"),
        ("conf/a.yaml", "both:main", "both:main"),
        ("conf/a.yaml", "nowhere:main", "nowhere:main"),
        ("conf/a.yaml", "conf.beside:main", "conf.beside:main"),
        ("a-b/a.yaml", "beside:main", "beside:main"),
        ("../a.yaml", "outside:main", "outside:main"),
        ("beside/a.yaml", "beside:main", "beside.beside:main"),
        ("a.yaml", "both:main", "both:main"),
    ],
)
def test_entry_beside_its_config_is_named_from_the_submit_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config_file: str, entry: str, wanted: str
) -> None:
    work = tmp_path / "work"
    for name in ("conf/beside", "conf/deep/inner", "conf/package/__init__", "conf/both", "both", "a-b/beside"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / f"{name}.py").touch()
    (work / "beside").mkdir()
    (work / "beside/beside.py").touch()
    (tmp_path / "outside.py").touch()
    (work / config_file).write_text(f"entry: {entry}\n")
    monkeypatch.chdir(work)
    assert config.load(config_file).entry == wanted
    (tmp_path / "link").symlink_to(work)
    assert config.load(tmp_path / "link" / config_file).entry == wanted


def test_overridden_entry_is_looked_for_beside_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/other.py").touch()
    assert load(tmp_path / "conf", MINIMAL, "entry=other:main").entry == "conf.other:main"


def test_entry_of_a_dictionary_is_not_looked_for_beside_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/train.py").touch()
    assert config.from_mapping({"entry": "train:main"}).entry == "train:main"


def test_every_shipped_config_loads() -> None:
    from clusterdp.submission.render.shipped_files import shipped_folder

    paths = sorted(shipped_folder("configs").glob("*.yaml"))
    assert paths
    for path in paths:
        config.load(path)


def test_leading_zeros_are_accepted_in_unambiguous_numbers(tmp_path: Path) -> None:
    c = load(tmp_path, MINIMAL + "params: {a: 007, b: 0, c: 0o10, d: '010', e: 08, f: -0x10, g: 0.10, h: 00}\n")
    assert c.params == {"a": 7, "b": 0, "c": 8, "d": "010", "e": "08", "f": -16, "g": 0.1, "h": 0}


def test_interpolation_reads_defaults_of_omitted_sections(tmp_path: Path) -> None:
    c = load(tmp_path, MINIMAL + "params: {limit: '${restart.max_crashes}'}\n")
    assert c.params == {"limit": 3}


def test_loading_a_config_leaves_the_dataclass_types_unchanged(tmp_path: Path) -> None:
    import dataclasses

    before = [(each.name, each.type) for each in dataclasses.fields(config.Config)]
    load(tmp_path, MINIMAL)
    assert [(each.name, each.type) for each in dataclasses.fields(config.Config)] == before
    assert all(isinstance(kind, str) for _, kind in before)


@pytest.mark.parametrize(
    ("nodes", "sizes"), [(4, [4]), ("4", [4]), ("2-4", [2, 3, 4]), ("2,4,8", [2, 4, 8]), ("6-7,1", [1, 6, 7])]
)
def test_nodes_may_be_a_number_a_range_or_a_list(nodes: object, sizes: list[int]) -> None:
    values = {"entry": "a:b", "train": {"global_batch_size": 8}, "resources": {"nodes": nodes}}
    loaded = config.from_mapping(values).resources
    assert (loaded.nodes, loaded.sizes, loaded.is_elastic) == (nodes, sizes, len(sizes) > 1)
    assert (loaded.least_nodes, loaded.most_nodes) == (sizes[0], sizes[-1])


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        (
            {},
            "resources.nodes: with 2-4 nodes, the samples of a step would change with the nodes of each attempt. Set ",
        ),
        ({"extra": {"gpus": 4}}, "resources.extra.gpus: is the same number on any of 2-4 nodes. Use "),
    ],
)
def test_range_of_nodes_refuses_values_for_one_number(resources: dict[str, object], said: str) -> None:
    train = {"global_batch_size": 8} if resources else {}
    with pytest.raises(ConfigError, match=re.escape(said)):
        config.from_mapping({"entry": "a:b", "train": train, "resources": {"nodes": "2-4", **resources}})
    config.from_mapping({"command": "a", "resources": {"nodes": "2-4"}})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"resources": {"nodes": 2}}, "restart.grow_after_s: has no effect with nodes: 2. Write a range"),
        ({"backend": "submitit"}, "restart.grow_after_s: needs entry:, restart.requeue: true, backend: sbatch and "),
        ({"launch": {"launcher": "torchrun"}}, "restart.grow_after_s: needs entry:, "),
        ({"restart": {"grow_after_s": 0}}, "restart.grow_after_s: 0 is not above 0."),
    ],
)
def test_growth_needs_a_range_and_a_requeue(values: dict[str, Any], said: str) -> None:
    needed = {"resources": {"nodes": "2-4"}, "restart": {"grow_after_s": 60}, "train": {"global_batch_size": 8}}
    config.from_mapping({"entry": "a:b", **needed})
    with pytest.raises(ConfigError, match=re.escape(said)):
        config.from_mapping({"entry": "a:b", **needed, **values})
