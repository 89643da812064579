"""The jobs of programs that others have written, each unmodified and at a commit, with a note about the program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Foreign:
    """job: a config. note: what the verdicts do not show. repository: on GitHub; none if the program comes with a
    library. folder: of the program in the repository. files: of the folder; none stands for all. prepare: bash lines
    that make its data; $PROGRAMS is this folder."""

    title: str
    job: str
    note: str
    repository: str = ""
    commit: str = ""
    folder: str = ""
    files: tuple[str, ...] = ()
    prepare: str = "true"
    needs: tuple[str, ...] = ()


FOREIGN = {
    "nanogpt": Foreign(
        "nanoGPT",
        """\
script: |
  resume=; [ ! -e out/ckpt.pt ] || resume=--init_from=resume
  exec env -u RANK python train.py config/train_shakespeare_char.py --out_dir=out --device=cpu --compile=False \\
    --dtype=float32 --eval_iters=2 --eval_interval=100 --always_save_checkpoint=True --log_interval=1 --block_size=64 \\
    --batch_size=8 --n_layer=2 --n_head=2 --n_embd=64 --max_iters=500 --lr_decay_iters=500 --warmup_iters=10 $resume
resources: {nodes: 1, tasks_per_node: 1}
launch: {env: {OMP_NUM_THREADS: "1"}}
""",
        "nanoGPT trains on a GPU if `RANK` is set. Its batches and its dropout draw from torch's random numbers,"
        " which are in no checkpoint. To pass the other drills, it must save and set `torch.get_rng_state()`, save"
        " under another name and rename, and save at SIGTERM.",
        "karpathy/nanoGPT",
        "3adf61e1",
        prepare="cat *.py *.md >data/shakespeare_char/input.txt && python data/shakespeare_char/prepare.py",
        needs=("requests",),
    ),
    "makemore": Foreign(
        "makemore",
        """\
script: |
  resume=; [ ! -e out/model.pt ] || resume=--resume
  exec python makemore.py -i names.txt -o out --max-steps 1600 --batch-size 8 --n-layer 1 --n-head 2 --n-embd 32 \\
    --n-embd2 32 -n 0 $resume
resources: {nodes: 1, tasks_per_node: 1}
launch: {env: {OMP_NUM_THREADS: "1"}}
""",
        "`--resume` loads only the model. The optimizer starts anew, and the steps begin at 0 again.",
        "karpathy/makemore",
        "988aa59",
        needs=("tensorboard",),
    ),
    "word_language_model": Foreign(
        "word_language_model",
        """\
command: >-
  python main.py --epochs 5 --emsize 32 --nhid 32 --nlayers 1 --bptt 20 --batch_size 20 --log-interval 1
  --save out/model.pt
launch: {env: {OMP_NUM_THREADS: "1"}, setup: mkdir -p out}
resources: {nodes: 1, tasks_per_node: 1}
""",
        "The program cannot resume. Each attempt begins at the first step, and ends in the same state because the"
        " seed is fixed.",
        "pytorch/examples",
        "77f55b9",
        "word_language_model",
        ("main.py", "data.py", "model.py"),
        "mkdir -p data/wikitext-2; for part in train valid test; do cat *.py >data/wikitext-2/$part.txt; done",
    ),
    "llama2_c": Foreign(
        "llama2.c",
        """\
script: |
  resume=; [ ! -e out/ckpt.pt ] || resume=--init_from=resume
  exec env -u RANK python train.py --device=cpu --compile=False --dtype=float32 --vocab_source=custom \\
    --vocab_size=512 --dim=32 --n_layers=2 --n_heads=2 --n_kv_heads=2 --max_seq_len=32 --batch_size=8 \\
    --gradient_accumulation_steps=1 --eval_iters=2 --eval_interval=100 --always_save_checkpoint=True \\
    --max_iters=600 --warmup_iters=10 $resume
resources: {nodes: 1, tasks_per_node: 1}
launch: {env: {OMP_NUM_THREADS: "1"}}
""",
        "The program draws the order of its batches from `random.Random(42)`, which starts over after a resume.",
        "karpathy/llama2.c",
        "350e04f",
        prepare="mkdir -p data/tok512 && python -c \"import numpy as np; text = open('run.c', 'rb').read(); "
        "[np.frombuffer(text, np.uint8).astype(np.uint16).tofile(f'data/tok512/data{i}.bin') for i in range(3)]\"",
        needs=("requests", "sentencepiece", "tqdm"),
    ),
    "lightning_cli": Foreign(
        "LightningCLI",
        """\
command: >-
  python demo.py fit --seed_everything=1 --ckpt_path=last
  --trainer.accelerator=cpu --trainer.strategy=ddp --trainer.devices=2 --trainer.max_epochs=16
  --trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint --trainer.callbacks.dirpath=ckpt
  --trainer.callbacks.save_last=true --trainer.callbacks.every_n_train_steps=100
  --trainer.callbacks+=lightning.pytorch.callbacks.TQDMProgressBar
resources: {nodes: 1, tasks_per_node: 2}
launch: {signal: USR1@60, env: {OMP_NUM_THREADS: "1"}}
""",
        "The program trains Lightning's own `DemoModel` on `BoringDataModule`, with"
        ' `save_config_kwargs={"overwrite": True}`. Without this argument, a requeued job finds the `config.yaml`'
        " of its first attempt, and refuses to start. When its time runs out, Lightning saves `hpc_ckpt_1.ckpt` at"
        " USR1 and requeues the job itself, but `--ckpt_path=last` then loads the older `last.ckpt`.",
        prepare="""cat >demo.py <<'EOF'
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, DemoModel

LightningCLI(DemoModel, BoringDataModule, save_config_kwargs={"overwrite": True})
EOF""",
        needs=("lightning", "jsonargparse[signatures]"),
    ),
    "accelerate_example": Foreign(
        "accelerate",
        """\
script: |
  last=$(ls -d out/step_* 2>/dev/null | sort -V | tail -1)
  exec python checkpointing.py --cpu --checkpointing_steps 50 --output_dir out \\${last:+--resume_from_checkpoint $last}
resources: {nodes: 1, tasks_per_node: 2}
launch: {env: {OMP_NUM_THREADS: "1", HF_HUB_OFFLINE: "1"}}
rehearse: {compare: [out/step_300]}
""",
        "The program is accelerate's example of checkpoints, with a tiny BERT and made-up pairs under the names"
        " that it loads. The example prints no steps. Therefore repeated steps are not counted.",
        "huggingface/accelerate",
        "16cb6eb8",
        "examples/by_feature",
        ("checkpointing.py",),
        "python $PROGRAMS/tiny_bert.py",
        ("accelerate", "transformers", "datasets", "evaluate", "scikit-learn"),
    ),
    "trl_sft": Foreign(
        "SFT of TRL",
        """\
script: |
  last=$(ls -d out/checkpoint-* 2>/dev/null | sort -V | tail -1)
  exec python -m trl.scripts.sft --model_name_or_path model --dataset_name texts --output_dir out --use_cpu True \\
    --bf16 False --ddp_backend gloo --per_device_train_batch_size 4 --max_steps 120 --save_steps 20 --logging_steps 1 \\
    --max_length 64 --seed 1 --gradient_checkpointing False --report_to none \\${last:+--resume_from_checkpoint $last}
resources: {nodes: 1, tasks_per_node: 1}
launch: {env: {OMP_NUM_THREADS: "1", HF_HUB_OFFLINE: "1"}}
rehearse: {compare: [out/checkpoint-120]}
""",
        "The Trainer of transformers trains a tiny GPT-2 on made-up texts. The script's `ls`, not the Trainer,"
        " takes the newest folder, even if the folder is not whole. With two ranks, the program hung at its exit: a"
        " thread of gloo waited for Python's lock, because the program does not destroy its process group.",
        prepare="python $PROGRAMS/tiny_gpt2.py",
        needs=("trl", "transformers", "accelerate", "datasets"),
    ),
    "accelerate_complete": Foreign(
        "accelerate, complete",
        """\
script: |
  last=$(ls -d out/step_* 2>/dev/null | sort -V | tail -1)
  exec python complete_nlp_example.py --cpu --checkpointing_steps 50 --output_dir out \\
    \\${last:+--resume_from_checkpoint $last}
resources: {nodes: 1, tasks_per_node: 2}
launch: {env: {OMP_NUM_THREADS: "1", HF_HUB_OFFLINE: "1"}}
rehearse: {compare: [out/step_300]}
""",
        "The program is accelerate's complete example, with the same tiny BERT. This example prints no steps, either.",
        "huggingface/accelerate",
        "16cb6eb8",
        "examples",
        ("complete_nlp_example.py",),
        "python $PROGRAMS/tiny_bert.py",
        ("accelerate", "transformers", "datasets", "evaluate", "scikit-learn"),
    ),
    "pykeen_pipeline": Foreign(
        "PyKEEN",
        """\
command: python train.py
resources: {nodes: 1, tasks_per_node: 1}
launch: {env: {OMP_NUM_THREADS: "1"}}
""",
        "The program runs PyKEEN's `pipeline` on PyKEEN's own data set. PyKEEN writes its own checkpoints, and"
        " finds them by itself.",
        prepare="""cat >train.py <<'EOF'
from pykeen.pipeline import pipeline

checkpoints = {"checkpoint_directory": "out", "checkpoint_name": "last.pt", "checkpoint_frequency": 0}
pipeline(
    dataset="Nations",
    model="TransE",
    random_seed=1,
    device="cpu",
    training_kwargs={"num_epochs": 100, "batch_size": 64, **checkpoints},
)
EOF""",
        needs=("pykeen",),
    ),
    "mace": Foreign(
        "MACE",
        """\
command: >-
  mace_run_train --name=copper --train_file=train.xyz --valid_fraction=0.2 --E0s=average --hidden_irreps=4x0e
  --num_radial_basis=4 --max_ell=1 --correlation=1 --num_interactions=1 --r_max=3 --batch_size=4 --max_num_epochs=60
  --device=cpu --seed=1 --eval_interval=2 --checkpoints_dir=out --restart_latest --energy_key=REF_energy
  --forces_key=REF_forces
resources: {nodes: 1, tasks_per_node: 1}
launch: {env: {OMP_NUM_THREADS: "1"}}
""",
        "The program trains a potential for four atoms of copper. MACE writes a checkpoint when the validation has a"
        " new best loss.",
        prepare="python $PROGRAMS/copper.py",
        needs=("mace-torch",),
    ),
}
