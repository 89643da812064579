"""The parts and ranks of values, as real programs name them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clusterdp.rehearse.state import of_files
from clusterdp.rehearse.state.parts import part_of, rank_of

NAMED = """
ckpt.pt            model  model.transformer.h.0.attn.c_attn.weight  100
ckpt.pt            optimizer  optimizer.state.0.exp_avg  100
ckpt.pt            optimizer  optimizer.state.0.step  1
ckpt.pt            scheduler  optimizer.param_groups.0.lr
ckpt.pt            other  model_args.n_layer
ckpt.pt            step  iter_num
ckpt.pt            metrics  best_val_loss  1
ckpt.pt            other  config.learning_rate
last.ckpt          model  state_dict.layer_1.weight  100
last.ckpt          optimizer  optimizer_states.0.state.0.exp_avg  100
last.ckpt          scheduler  lr_schedulers.0.last_epoch
last.ckpt          step  loops.fit_loop.epoch_loop.batch_progress.total.ready
last.ckpt          metrics  callbacks.ModelCheckpoint{'monitor': None}.best_model_score  1
last.ckpt          step  global_step
last.ckpt          scaler  MixedPrecision.scale
last.ckpt          scaler  native_amp_scaling_state._growth_tracker
c-20/model.safetensors  model  lm_head.weight  100
c-20/optimizer.pt  optimizer  state.0.exp_avg_sq  100
c-20/scheduler.pt  scheduler  last_epoch
c-20/scaler.pt     scaler  scale
c-20/rng_state_0.pth    rng  cpu  5056
c-20/rng_state_0.pth    rng  python.1
c-20/trainer_state.json step  global_step
c-20/trainer_state.json metrics  log_history.0.loss
a/random_states_0.pkl   rng  torch_manual_seed  5056
a/random_states_0.pkl   step  step
a/random_states_0.pkl   rng  random_state.1
a/sampler.bin      sampler  epoch_seed
a/optimizer.bin    optimizer  state.0.exp_avg  100
a/dl_state_dict.bin  sampler  _index
a/pytorch_model.bin  model  encoder.step.weight  100
best_model.pth     optimizer  optimizer_state_dict.state.0.exp_avg  100
best_model.pth     model  conv1.weight  100
best_model.pth     step  epoch
x.pt               rng  rng.torch  5056
x.pt               rng  torch_rng_state  5056
x.pt               rng  cuda_rng_state_all.0  16
x.pt               rng  generator_state  5056
x.pt               rng  loader.generator  5056
x.pt               model  generator.main.0.weight  100
x.pt               sampler  train_loader.position
x.pt               sampler  cursor
x.pt               sampler  BATCHES_RUN
x.pt               sampler  batch_idx
x.pt               sampler  order.3
x.pt               scheduler  lr
x.pt               other  args.lr
x.pt               other  batch_size
x.pt               scaler  grad_scaler.scale
x.pt               model  noise_scheduler.betas  100
x.pt               model  time_embed.0.weight  100
x.pt               model  ema.weight  100
metrics.json       metrics  per_class.0
x.pt               other  whatever
"""


@pytest.mark.parametrize("line", NAMED.strip().splitlines())
def test_part_of_classifies_values_by_file_and_key(line: str) -> None:
    file, part, rest = line.split(maxsplit=2)
    key, _, elements = rest.partition("  ")
    assert part_of(file, key, int(elements) if elements else None) == part


def test_rank_of_reads_the_rank_from_key_or_file_name() -> None:
    assert rank_of(":rank2.rng.torch") == 2
    assert rank_of("c-20/rng_state_3.pth:cpu") == 3
    assert rank_of("a/random_states_10.pkl:step") == 10
    assert rank_of("ckpt_rank0.pt:model.w") == 0
    assert rank_of("ckpt.pt:model.ranking_1.w") is None


def test_transformers_checkpoint_folder_is_read_without_its_timings(tmp_path: Path) -> None:
    folder = tmp_path / "out/checkpoint-20"
    folder.mkdir(parents=True)
    torch.save({"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 0.1}]}, folder / "optimizer.pt")
    torch.save({"cpu": torch.get_rng_state()}, folder / "rng_state_1.pth")
    log = '{"global_step": 20, "log_history": [{"loss": 1.5, "step": 20}, {"train_runtime": 3.5}]}'
    (folder / "trainer_state.json").write_text(log)
    found = of_files(tmp_path, ["out/checkpoint-20"]).values
    assert {key.removeprefix("out/checkpoint-20/"): (leaf.part, leaf.rank) for key, leaf in found.items()} == {
        "optimizer.pt:state.0.exp_avg": ("optimizer", None),
        "optimizer.pt:param_groups.0.lr": ("scheduler", None),
        "rng_state_1.pth:cpu": ("rng", 1),
        "trainer_state.json:global_step": ("step", None),
        "trainer_state.json:log_history.0.loss": ("metrics", None),
        "trainer_state.json:log_history.0.step": ("metrics", None),
    }
