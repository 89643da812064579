"""What is asked of Slurm, and what is said where it does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp.check.check import check
from clusterdp.check.cluster.cluster_facts import TIMEOUT_S, ask_cluster
from clusterdp.config import read
from clusterdp.config.tree import ResourcesConfig
from clusterdp.slurm import commands
from clusterdp.slurm.commands import Association
from tests.check.builder import PARTITIONS, SETTINGS, SINFO


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What each command prints; `hangs` for one that does not answer in time. `asked` holds all calls, `words`
    all of their words."""
    settings = "\n".join(f"{name} = {value}" for name, value in SETTINGS.items())
    said = {
        "partition": PARTITIONS,
        "config": settings,
        "sinfo": SINFO,
        "hosts": "n1 n1",
        "sbatch": "",
        "asked": "",
        "words": "",
    }

    def call(argv: list[str], timeout_s: float = 60.0, **_: object) -> object:
        key = argv[-1] if argv[0] == "scontrol" else "hosts" if "--Node" in argv else argv[0]
        if key == "sacctmgr":
            what = argv[argv.index("show") + 1]
            key = " ".join([key, what, *(word for word in argv if word.startswith("account="))])
        said["words"] += f"{' '.join(argv)}\n"
        said["asked"] += f"{key}:{timeout_s:.0f} "
        if said.get(key) == "hangs":
            raise commands.CommandTimeout(f"{argv[0]}: no answer within {timeout_s:.0f} s.")
        refused = said.get("refused", "") if argv[0] == "sbatch" else ""
        return commands.subprocess.CompletedProcess(argv, bool(refused), said.get(key, ""), refused)

    monkeypatch.setattr(commands, "_call", call)
    monkeypatch.setattr(commands, "have_slurm", lambda: True)
    monkeypatch.delenv("SLURM_CLUSTERS", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "cfg.yaml").write_text("command: python train.py\n")
    return said


def notes() -> str:
    return " ".join(check(read("cfg.yaml"), Path("cfg.yaml")).notes)


def test_check_asks_each_slurm_command_once_with_a_10_s_timeout(slurm: dict[str, str]) -> None:
    assert "No " not in notes()
    assert slurm["asked"].split() == [f"{key}:10" for key in ("partition", "sinfo", "config", "hosts", "sbatch")]


@pytest.mark.parametrize(
    ("key", "answer", "note"),
    [
        ("sinfo", "hangs", "No answer that is understood from sinfo"),
        ("sinfo", "<html>", "No answer that is understood from sinfo"),
        ("config", "hangs", "No answer that is understood from scontrol show config"),
        ("config", "<html>", "No answer that is understood from scontrol show config"),
        ("sbatch", "hangs", "sbatch: no answer within 10 s."),
        (
            "partition",
            "hangs",
            "Slurm was asked, and gave no answer that is understood (scontrol show partition): limits",
        ),
        (
            "partition",
            "<html>",
            "Slurm was asked, and gave no answer that is understood (scontrol show partition): limits",
        ),
    ],
)
def test_check_names_a_slurm_command_without_a_readable_answer(
    key: str, answer: str, note: str, slurm: dict[str, str]
) -> None:
    slurm[key] = answer
    assert note in notes()
    assert not (key == "sinfo" and "hosts" in slurm["asked"])
    assert {each.rpartition(":")[2] for each in slurm["asked"].split()} == {f"{TIMEOUT_S:.0f}"}


CONFIG_UNAVAILABLE = "allocation failure: Requested node configuration is not available"


@pytest.mark.parametrize(
    ("refused", "idle", "level"),
    [
        ("allocation failure: Invalid license specification", "idle", "error"),
        ("allocation failure: Invalid license specification", "down*", "error"),
        (CONFIG_UNAVAILABLE, "idle", "error"),
        (CONFIG_UNAVAILABLE, "down*", "warning"),
        (CONFIG_UNAVAILABLE, "reserved", "warning"),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", "idle", ""),
    ],
)
def test_sbatch_refusal_is_an_error_unless_nodes_or_controller_are_unavailable(
    refused: str, idle: str, level: str, slurm: dict[str, str]
) -> None:
    slurm["refused"] = refused
    slurm["sinfo"] = SINFO.replace("main*|up|idle", f"main*|up|{idle}").replace("|4|8|", "|5|8|")
    checked = check(read({"command": "true", "resources": {"constraint": "a|b"}}), Path("cfg.yaml"))
    assert [each.level for each in checked.findings if "test-only" in each.what] == [level] * bool(level)
    assert level or "Unable to contact" in " ".join(checked.notes)


@pytest.mark.parametrize(
    ("away", "level"),
    [
        ("main*|up|drained|1|8|16000|gpu:2|(null)", "error"),
        ("main*|up|reserved|1|8|16000|gpu:2|(null)", "error"),
        ("main*|up|drained|1|64|16000|gpu:2|(null)", "warning"),
    ],
)
def test_refusal_is_an_error_beside_a_drained_node_with_twins_in_use(
    away: str, level: str, slurm: dict[str, str]
) -> None:
    slurm["refused"] = CONFIG_UNAVAILABLE
    slurm["sinfo"] = f"{SINFO}{away}|infinite|1-infinite\n"
    checked = check(read({"command": "true", "resources": {"extra": {"licenses": "x"}}}), Path("cfg.yaml"))
    assert [each.level for each in checked.findings if "test-only" in each.what] == [level]


@pytest.mark.parametrize(("parameters", "level"), [("CR_Core", "warning"), ("CR_Core_Memory", "error")])
def test_refused_memory_is_an_error_only_under_cr_core_memory(
    parameters: str, level: str, slurm: dict[str, str]
) -> None:
    slurm["refused"] = CONFIG_UNAVAILABLE
    slurm["config"] += f"\nSelectTypeParameters = {parameters}"
    given = {"command": "true", "resources": {"cpus_per_task": 2, "extra": {"mem-per-cpu": "1G"}}}
    checked = check(read(given), Path("cfg.yaml"))
    assert [each.level for each in checked.findings if "test-only" in each.what] == [level]


@pytest.mark.parametrize(("partition", "level"), [("main,low", "warning"), ("main", "error")])
def test_sbatch_test_only_refusal_of_nodes_is_a_warning_with_several_partitions(
    partition: str, level: str, slurm: dict[str, str]
) -> None:
    slurm["refused"] = CONFIG_UNAVAILABLE
    checked = check(read({"command": "true", "resources": {"partition": partition}}), Path("cfg.yaml"))
    assert [each.level for each in checked.findings if "test-only" in each.what] == [level]


@pytest.mark.parametrize(("reservation", "level"), [("course", "warning"), (None, "error")])
def test_refused_time_is_only_a_warning_for_a_job_with_a_reservation(
    reservation: str | None, level: str, slurm: dict[str, str]
) -> None:
    slurm["refused"] = "allocation failure: Invalid time specified"
    checked = check(read({"command": "true", "resources": {"reservation": reservation}}), Path("cfg.yaml"))
    assert [each.level for each in checked.findings if "test-only" in each.what] == [level]


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ("", "2 min here before the job may start again (cred_expire)"),
        ("AuthInfo = socket=/x,cred_expire=300", "5 min here"),
        ("SLURM_VERSION = 25.11.3\nSchedulerParameters = bf_interval=1,requeue_delay=5", "5 s here"),
        ("SLURM_VERSION = 24.11.5\nSchedulerParameters = requeue_delay=5", "2 min here"),
    ],
)
def test_check_reports_the_requeue_delay_of_the_slurm_release(settings: str, waits: str, slurm: dict[str, str]) -> None:
    slurm["config"] += f"\n{settings}"
    assert f"Each requeue waits {waits}" in notes()
    for restart in ({"requeue": False}, {"how": "resubmit"}):
        checked = check(read({"command": "true", "restart": restart}), Path("cfg.yaml"))
        assert "Each requeue" not in " ".join(checked.notes)


def test_check_asks_no_slurm_command_for_a_job_on_another_cluster(
    slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("clusters", "cluster"):
        assert ask_cluster(ResourcesConfig(extra={key: "other"})).other == f"resources.extra.{key}: other"
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    assert "No scheduler was asked (SLURM_CLUSTERS=other is another cluster)" in notes()
    assert slurm["asked"] == ""


def test_ask_cluster_reads_the_users_associations_if_accounting_is_enforced(slurm: dict[str, str]) -> None:
    slurm["config"] += "\nAccountingStorageEnforce = associations\nClusterName = east"
    slurm["sacctmgr user"] = (
        "vision||short,long|short|nlp||cpu=8||||||\nnlp|gpu|long||nlp|1:00||||3|node=2||\n\ntorn|x\n"
    )
    facts = ask_cluster(ResourcesConfig())
    limited = {"MaxWall": "1:00", "MaxSubmit": "3", "GrpTRES": "node=2"}
    assert list(facts.associations) == [
        Association("vision", ("short", "long"), "short", limits={"MaxTRES": "cpu=8"}),
        Association("nlp", ("long",), partition="gpu", is_default=True, limits=limited),
    ]
    assert "cluster=east" in slurm["words"]
    asked = [ResourcesConfig(account=name) for name in ("vision", "nlp", None)]
    assert [facts.account_of(each) for each in asked] == ["vision", "nlp", "nlp"]
    assert [facts.job_qos(each, "main") for each in asked] == ["short", "", ""]
    assert [getattr(facts.association_of(each, "gpu"), "account", "") for each in asked] == ["vision", "nlp", "nlp"]
    assert facts.association_of(asked[1], "main") is None
    assert (facts.accounts, "sacctmgr associations" in slurm["asked"]) == ({}, False)


GROUPS = {"vision": "cpu=8", "lab": "", "root": ""}


def test_ask_cluster_reads_the_limits_of_all_parent_accounts(slurm: dict[str, str]) -> None:
    slurm["config"] += "\nAccountingStorageEnforce = limits"
    slurm["sacctmgr user"] = "vision||||vision||||||||\n"
    slurm["sacctmgr associations account=vision"] = "cpu=8|||lab\n"
    slurm["sacctmgr associations account=lab"] = "|||root\n"
    slurm["sacctmgr associations account=root"] = "|||\n"
    facts = ask_cluster(ResourcesConfig())
    assert {name: limits["GrpTRES"] for name, limits in facts.accounts.items()} == {
        "vision": "cpu=8",
        "lab": "",
        "root": "",
    }
    slurm["sacctmgr associations account=root"] = "|||vision\n"  # nobody's tree is like this
    assert list(ask_cluster(ResourcesConfig()).accounts) == ["vision", "lab", "root"]
    slurm["sacctmgr associations account=lab"] = "hangs"
    facts = ask_cluster(ResourcesConfig())
    assert (facts.accounts, facts.silent) == ({}, ("sacctmgr show associations",))
