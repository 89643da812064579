"""Host lists as a real scontrol reads and writes them; a wrong one sends ranks to hosts that do not exist."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterdp.slurm.hostlist import HostlistError, compress, compress_sorted, expand, joined

RECORD = json.loads((Path(__file__).parent.parent / "slurm_facts" / "nodelists.json").read_text())
# Slurm 22.05 makes something of these typing errors, by accident; we refuse them.
TYPING_ERRORS = {row["in"] for row in RECORD["expand"] if row["in"].count("[") != row["in"].count("]")} | {
    "n[[1]", "n]", "n1]", "]", "n[1][", "n[1-2m[3]", "n[+1-2]", "n[1, 3]", "n[1 -2]"
}  # fmt: skip
EXPANDED = [row for row in RECORD["expand"] if row["in"] not in TYPING_ERRORS]


@pytest.mark.parametrize("row", EXPANDED, ids=lambda row: repr(row["in"]))
def test_expand_agrees_with_recorded_scontrol_output(row: dict[str, list[str]]) -> None:
    assert expand(row["in"], strict=True) == row["out"]  # type: ignore[arg-type]


def test_hosts_are_joined_in_their_order_and_other_text_is_kept() -> None:
    pairs = {"n1,n2,n4": "n[1-2,4]", "n4,n2,n3": "n[4,2-3]", "n[1": "n[1", "": "", "n1": "n1"}
    assert {text: joined(text) for text in pairs} == pairs


@pytest.mark.parametrize("row", RECORD["compress"], ids=lambda row: ",".join(row["in"])[:60])
def test_compress_agrees_with_recorded_scontrol_output(row: dict[str, list[str]]) -> None:
    hosts = [host for part in row["in"] for host in expand(part)]
    assert compress(hosts) == row["out"]  # type: ignore[comparison-overlap]
    assert compress_sorted(hosts) == row["sorted"]  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("row", [row for row in RECORD["errors"] if row["in"] != "--"], ids=lambda row: repr(row["in"]))
def test_expand_refuses_hostlists_refused_by_slurm(row: dict[str, str]) -> None:
    with pytest.raises(HostlistError):
        expand(row["in"], strict=True)


@pytest.mark.parametrize("text", sorted(TYPING_ERRORS))
def test_expand_refuses_mistyped_brackets_and_ranges(text: str) -> None:
    with pytest.raises(HostlistError):
        expand(text)


def test_expand_accepts_a_host_name_suffix_after_a_bracket() -> None:
    assert expand("n[1-2]-ib,m7") == ["n1-ib", "n2-ib", "m7"]


def test_expand_refuses_a_huge_range() -> None:
    with pytest.raises(HostlistError, match="too many hosts"):
        expand("n[1-99999999]")


names = st.from_regex(r"[a-z][a-z-]{0,4}(0|[0-9]{1,3})?", fullmatch=True)


@given(st.lists(names, max_size=30))
def test_compressed_hosts_expand_to_the_same_hosts_in_order(hosts: list[str]) -> None:
    assert expand(compress(hosts), strict=True) == hosts


@given(st.lists(names, max_size=30))
def test_compress_sorted_keeps_all_hosts_and_duplicates(hosts: list[str]) -> None:
    assert sorted(expand(compress_sorted(hosts))) == sorted(hosts)


@pytest.mark.parametrize("expression", ["n[0-65535][0-65535]", "n[0-999][0-999]", ",".join(["n[0-60000]"] * 2)])
def test_expand_refuses_hostlists_with_too_many_hosts_in_total(expression: str) -> None:
    with pytest.raises(HostlistError, match="too many hosts"):
        expand(expression)
