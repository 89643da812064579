"""What the servers that fork ranks have in memory: what a rank imports, at an optimizer's first call and at the first
metrics, too. The objects leave the collector's sight: else each collection in a rank, and each search for optimizers,
would go through those of torch, and copy the pages that they touch."""

# ruff: noqa: E402, F401
import gc

gc.disable()
import encodings.idna

import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.profiler._cupti_monitor
import yaml.cyaml

import clusterdp.config.files
import clusterdp.recipes.digits
import clusterdp.train.hang.hang_watch
import clusterdp.train.process.attempt
import clusterdp.train.profile.profiling
import clusterdp.train.profile.worker_finder
import clusterdp.train.trainer.trainer

gc.enable()
gc.freeze()
