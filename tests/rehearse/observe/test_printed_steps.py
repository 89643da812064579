from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp.batch.files.rank_logs import LogFile
from clusterdp.rehearse.observe import printed_steps
from clusterdp.rehearse.observe.printed_steps import GrowingLog, counter_of, last_step, steps_of


@pytest.mark.parametrize(
    ("line", "counter"),
    [
        ("step {} loss 0.5", "step"),
        ("[12:00:0{}] Iteration {}: lr 0.1", "[#] iteration"),
        ("global_step={}", "global_step="),
        ("epoch 1:  33%|###   | {}/60 [00:01<00:02]", "epoch # #%| @/60"),
        ("Epoch: [2][  {}/60]\tTime 0.1", "epoch: [#][ @/60"),
        (" iteration        {}/     500 | lm loss: 6.8", "iteration"),
        ("train_step: {} num_samples 9", "train_step:"),
        ("num_updates={} loss=0.3", "num_updates="),
        ("[it 000{}] loss 0.3", "[it"),
        ("| epoch   1 |     {}/  60 batches | lr 20.00 | ms/batch 35.40", "| epoch # | @/60"),
        ("{} | loss 7.5 | lr 1e-3", "^"),
    ],
)
def test_steps_are_read_from_common_log_formats(line: str, counter: str) -> None:
    text = "".join(line.replace("{}", str(i)) + "\n" for i in (3, 4, 7))
    assert steps_of(text) == [3, 4, 7]
    assert " ".join(counter_of(text).split()) == counter


def test_counter_of_prefers_the_only_counter_without_resets() -> None:
    lines = [
        f"epoch {i // 4} batch {i % 4}/4 sample step {8 * i}\nglobal step {i}, eval step {i % 2}" for i in range(9)
    ]
    text = "\n".join(lines)
    counter = counter_of(text)
    assert counter == "global step"
    assert steps_of(text, counter) == [*range(9)]
    assert steps_of("epoch 3 batch 1/4 sample step 8\nglobal step 1", counter) == [1]


def test_counter_restarting_without_an_epoch_is_ignored() -> None:
    assert steps_of("step 1\nstep 2\nstep 1\nstep 2\n") == []


def test_counter_restarting_in_each_epoch_is_continued_across_epochs() -> None:
    text = "".join(
        f"Epoch {e}:  40%|{i * '█'}▌ | {i}/4 [00:01]\rValidation: {i}/4 [00:02]\r" for e in (1, 2) for i in (1, 3)
    )
    assert steps_of(text) == [1, 3, 5, 7]
    assert steps_of("Epoch 3:  40%|██ | 2/4 [00:01]", counter_of(text)) == [10]


def test_growing_progress_bar_is_one_counter() -> None:
    text = "".join(f" {i}%|{i // 10 * '█'}▌ | {i}/100 [00:01]\r" for i in range(100))
    assert steps_of(text) == [*range(1, 100)]


def test_last_step_returns_the_last_printed_step_or_none(tmp_path: Path) -> None:
    log, file = tmp_path / "log", LogFile(0, str(tmp_path / "log"), False)
    assert last_step(file) is None
    log.write_text("".join(f"step {i}\r" for i in range(5000)))
    assert last_step(file) == 4999
    log.write_text("hello\n")
    assert last_step(file) is None


def test_growing_log_counts_epochs_from_its_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed_steps, "CHOSEN_S", 0.0)
    log, rank_log = tmp_path / "log", LogFile(0, str(tmp_path / "log"), False)
    growing = GrowingLog(rank_log)
    assert growing.last_step() is None
    seen = []
    with log.open("w") as file:
        for epoch in range(40):
            for step in range(1, 33):
                file.write(f"\rEpoch {epoch}:  {step}%|{step // 8 * '█'} | {step}/32 [00:00<00:00, 80.57it/s]")
                file.flush()
            seen.append(growing.last_step())
    assert seen == [32 * epoch for epoch in range(1, 41)]
    assert last_step(rank_log) != seen[-1], "its end alone"


def test_instantly_full_progress_bar_is_not_read_as_steps() -> None:
    assert steps_of("Loading weights: 0%| | 0/25 [00:00]\rLoading weights: 100%|██| 25/25 [00:00]\n") == []


def test_constant_printed_setting_is_not_taken_for_a_step_counter() -> None:
    assert counter_of("".join(f"[GPU0] Epoch {e} | Batchsize: 32 | Steps: 10\n" for e in range(8))) == ""


def test_resumed_progress_bar_over_remaining_steps_continues_the_count() -> None:
    counter = counter_of("".join(f" {i}%|{i // 10 * '█'}▌ | {i}/100 [00:01]\r" for i in range(100)))
    assert steps_of(" 0%| | 1/60 [00:00<00:09]\r 3%|█ | 2/60 [00:00<00:09]", counter) == [41, 42]
    assert steps_of(" 0%| | 41/100 [00:00<00:09]\r 3%|█ | 42/100 [00:00<00:09]", counter) == [41, 42]
    text = "".join(f"Epoch {e}:  40%|{i * '█'}▌ | {i}/4 [00:01]\r" for e in (1, 2) for i in (1, 3))
    assert steps_of("Epoch 2:  40%|██ | 1/3 [00:01]", counter_of(text)) == [6]


def test_progress_bar_drawn_before_its_first_step_is_not_counted() -> None:
    assert steps_of(" 42%|██  | 42/100 [00:00<?, ?it/s]\r 44%|██  | 44/100 [00:01<00:03]\r 45%| | 45/100 [00:02]") == [
        44,
        45,
    ]


def test_resumed_progress_bar_starting_at_0_counts_from_the_resumed_step() -> None:
    assert steps_of(" 0%| | 0/120 [00:00]\r 34%|██| 41/120 [00:00]\r 35%|██| 42/120 [00:00]") == [41, 42]
