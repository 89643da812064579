"""compare() and spread_of(): what is a difference, what is not, and how large it is."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clusterdp.rehearse.state import Difference, EndState, compare, of_files, spread_of
from clusterdp.rehearse.state.compare import UNSTEADY


class States:
    """Each state in a file of its own."""

    def __init__(self, folder: Path):
        self.folder, self.count = folder, 0

    def __call__(self, tree: Any) -> EndState:
        """Of torch if there are tensors in it, else of JSON."""
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        if any(isinstance(each, torch.Tensor) for each in tree.values()):
            torch.save(tree, folder / "ckpt.pt")
            return of_files(folder, ["ckpt.pt"])
        (folder / "ckpt.json").write_text(json.dumps(tree))
        return of_files(folder, ["ckpt.json"])


@pytest.fixture
def state(tmp_path: Path) -> States:
    return States(tmp_path)


def one(found: list[Difference]) -> Difference:
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_compare_counts_and_measures_differing_elements(dtype: str, state: States) -> None:
    w = torch.ones(640, dtype=getattr(torch, dtype))
    v = w.clone()
    v[:3] = torch.tensor([1.5, 1.25, 0.5])
    found = one(compare(state({"w": w}), state({"w": v})))
    assert found.what == "differs in 3 of 640 elements, by at most 0.5"
    assert (found.key, found.part, found.rank) == ("w", "model", None)
    assert found.size == pytest.approx(0.75 / math.sqrt(637 + 1.5**2 + 1.25**2 + 0.5**2))


def test_compare_measures_a_tensor_read_in_pieces_as_a_whole(state: States, monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.linspace(-1, 1, 5000)
    v = w.clone()
    v[::7] += 0.25
    a, b = state({"w": w}), state({"w": v})
    whole = one(compare(a, b))
    monkeypatch.setattr(sys.modules["clusterdp.rehearse.state.compare"], "_BYTES", 1 << 10)
    pieces = one(compare(a, b))
    assert pieces.what == whole.what
    assert pieces.size == pytest.approx(whole.size)
    assert whole.what == "differs in 715 of 5000 elements, by at most 0.25"


def test_compare_distinguishes_signed_zeros_but_not_nan_payloads_or_key_order(state: States) -> None:
    nan = torch.tensor([math.nan, 1.0])
    other_nan = torch.from_numpy(np.array([0x7FC00001, 0x3F800000], np.uint32).view(np.float32))
    assert not compare(state({"w": nan}), state({"w": nan}))
    assert not compare(state({"w": nan}), state({"w": other_nan}))
    assert not compare(state({"loss": math.nan}), state({"loss": math.nan}))
    assert one(compare(state({"w": nan}), state({"w": torch.zeros(2)}))).size == math.inf
    zeros = one(compare(state({"w": torch.zeros(2)}), state({"w": -torch.zeros(2)})))
    assert (zeros.what, zeros.size) == ("differs in 2 of 2 elements, by at most 0", 0)
    assert one(compare(state({"loss": 0.0}), state({"loss": -0.0}))).what == "0.0 against -0.0"
    assert not compare(state({"a": 1, "b": [1, 2]}), state({"b": [1, 2], "a": 1}))


def test_compare_shows_both_values_of_numbers_and_text(state: States) -> None:
    a = {"loss": 1.0, "lr": 0.1, "step": 20, "note": "x", "gone": 1, "kind": 1}
    b = {"loss": 0.5, "lr": 0.1, "step": 12, "note": "y", "new": 1, "kind": "1"}
    found = {each.key: each for each in compare(state(a), state(b))}
    assert {key: each.what for key, each in found.items()} == {
        "loss": "1.0 against 0.5", "step": "20 against 12", "note": "'x' against 'y'", "gone": "is missing",
        "new": "is new", "kind": "1 against '1'",
    }  # fmt: skip
    assert (found["loss"].size, found["loss"].expected, found["loss"].got) == (0.5, 1.0, 0.5)
    assert (found["loss"].part, found["step"].part) == ("metrics", "step")
    scalar = one(compare(state({"scale": torch.tensor(4.0)}), state({"scale": torch.tensor(2.0)})))
    assert (scalar.what, scalar.expected, scalar.got) == ("4 against 2", 4.0, 2.0)


@pytest.mark.parametrize(
    ("v", "what"),
    [
        (torch.ones(2, 3), "float32[3] against float32[2, 3]"),
        (torch.ones(3, dtype=torch.float64), "float32[3] against float64[3]"),
    ],
)
def test_different_shape_or_dtype_is_a_difference(v: torch.Tensor, what: str, state: States) -> None:
    assert one(compare(state({"w": torch.ones(3)}), state({"w": v}))).what == what


def test_float8_difference_is_counted_without_a_magnitude(state: States) -> None:
    w = torch.zeros(4).to(torch.float8_e4m3fn)
    v = torch.tensor([0, 0, 0, 1.0]).to(torch.float8_e4m3fn)
    found = one(compare(state({"w": w}), state({"w": v})))
    assert (found.what, found.size) == ("differs in 1 of 4 elements", 0.25)


def drawn(seed: int, noise: float) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    base = torch.randn(500)
    torch.manual_seed(seed)
    return {"w": base + noise * torch.randn(500), "v": base.flip(0) + noise * torch.randn(500), "steps": torch.ones(3)}


def test_compare_reports_only_differences_beyond_the_spread_of_two_runs(state: States) -> None:
    a, b = state(drawn(1, 1e-6)), state(drawn(2, 1e-6))
    spread = spread_of(a, b)
    assert set(spread) == {"w", "v"}
    assert 0 < spread["w"] < 1e-5
    assert not compare(a, state(drawn(3, 1e-6)), spread)
    assert {each.key for each in compare(a, state(drawn(3, 1e-4)), spread)} == {"w", "v"}
    counted = drawn(3, 1e-6) | {"steps": torch.zeros(3)}
    assert one(compare(a, state(counted), spread)).key == "steps", "what was equal stays exact"


def test_spread_of_five_noisy_runs_accepts_noise_and_reveals_larger_differences(state: States) -> None:
    undisturbed = [state(drawn(seed, noise)) for seed, noise in enumerate((1e-6, 1e-7, 1e-6, 8e-6, 5e-6))]
    first, third, lost = undisturbed[0], state(drawn(7, 7e-6)), state(drawn(8, 1e-4))
    assert compare(first, third, spread_of(*undisturbed[:2])), "the spread of two was a small one"
    spread = spread_of(*undisturbed)
    assert not compare(first, third, spread, 5)
    assert {each.key for each in compare(first, lost, spread, 5)} == {"w", "v"}


def test_single_value_is_allowed_a_wider_spread_than_a_large_tensor(state: States) -> None:
    def run(away: float) -> EndState:
        """So many spreads away from the first."""
        one = torch.ones(1, dtype=torch.float64) + 1e-6 * away
        return state({"weight": torch.ones(800, dtype=torch.float64) + 1e-6 * away, "bias": one})

    spread = spread_of(*(run(away) for away in (0.0, 0.2, 0.4, 0.7, 1.0)))
    assert [each.key for each in compare(run(0.0), run(2.5), spread, 5)] == ["weight"]
    assert len(compare(run(0.0), run(7.0), spread, 5)) == 2


def test_tensor_equal_twice_by_chance_has_the_spread_of_its_part(state: States) -> None:
    a, b = drawn(1, 1e-6), drawn(2, 1e-6)
    b["v"] = a["v"]
    spread = spread_of(state(a), state(b))
    assert set(spread) == {"w"}
    assert not compare(state(a), state(drawn(3, 1e-6)), spread)
    assert not compare(state(a), state(a), {})


def test_values_unsteady_in_undisturbed_runs_are_not_compared(state: States) -> None:
    a, b = {"loss": 1.0, "id": "a17", "draws": 3, "only": 1}, {"loss": 1.0, "id": "c92", "draws": 4}
    spread = spread_of(state(a), state(b))
    assert spread == {"id": UNSTEADY, "draws": UNSTEADY, "only": UNSTEADY}
    assert not compare(state(a), state({"loss": 1.0, "id": "x", "draws": 9}), spread)
    assert one(compare(state(a), state(a | {"loss": 2.0}), spread)).key == "loss"


def test_rng_and_scaler_state_are_not_compared_if_undisturbed_runs_draw_differently(state: States) -> None:
    a, b, c = ({"rng": {"state": n, "has_uint32": u}, "step": 3} for n, u in ((1, 0), (2, 0), (3, 1)))
    spread = spread_of(state(a), state(b))
    assert not compare(state(a), state(c), spread), "a flag may be equal twice by chance"
    assert one(compare(state(a), state(c | {"step": 4}), spread)).key == "step"
    scaled = [{**each, "scaler": {"scale": scale}} for each, scale in ((a, 4.0), (b, 4.0), (c, 2.0))]
    spread = spread_of(state(scaled[0]), state(scaled[1]))
    assert not compare(state(scaled[0]), state(scaled[2]), spread), "other draws overflow in other steps"


def test_timings_hosts_and_paths_are_never_a_difference(state: States) -> None:
    a = {
        "loss": 0.5, "train_runtime": 12.5, "train_samples_per_second": 80, "wall_time_s": 3, "host": "n1", "pid": 17,
        "times": [0.5] * 50, "log_history": [{"epoch": 1.0, "elapsed": 3.25}], "out_dir": "/tmp/a", "started_at": "x",
        "said": "saved to /scratch/a/17 at 2026-11-23 10:39:46 after 12.5 s", "callbacks": {"best_model_path": "/a/b"},
    }  # fmt: skip
    b = {
        "loss": 0.5, "train_runtime": 19.5, "train_samples_per_second": 75, "wall_time_s": 4, "host": "n2", "pid": 19,
        "times": [0.7] * 50, "log_history": [{"epoch": 1.0, "elapsed": 4.25}], "out_dir": "/tmp/b", "started_at": "y",
        "said": "saved to /scratch/b/18 at 2026-11-24 11:40:47 after 9 s", "callbacks": {"best_model_path": "/a/c"},
    }  # fmt: skip
    assert compare(state(a), state(b)) == []
    assert spread_of(state(a), state(b)) == {}
    assert one(compare(state(a), state(b | {"said": a["said"].replace("saved", "lost")}))).key == "said"  # type: ignore[attr-defined]


def test_model_and_scheduler_values_are_compared_despite_names_like_time_or_path(state: States) -> None:
    assert compare(state({"time_embed": torch.ones(2)}), state({"time_embed": torch.zeros(2)}))
    assert compare(
        state({"model": {"path": 1}, "scheduler": {"time": 2}}), state({"model": {"path": 2}, "scheduler": {}})
    )
