"""The part of a training and the rank that a value belongs to, by the names that real programs use.

nanoGPT, Lightning, the Trainer of transformers, accelerate, and clusterdp's own checkpoints name the parts in the same
way: by a word of the first keys (`optimizer_states.0.state`), or by the file (`optimizer.pt`).
"""

from __future__ import annotations

import re
from typing import get_args

from clusterdp.rehearse.state.end_state import Part

_N = r"(?:[_-]?\d+)?"
_WORDS: dict[Part, str] = {
    "other": r"(?:model_)?(?:args|config|cfg|hparams|hyper_?parameters|options)",
    "scaler": rf"(?:grad_?|loss_?|amp_?)?scalers?{_N}|mixedprecision(?:plugin)?|native_amp_scaling_state|amp",
    "scheduler": rf"(?:lr_?|learning_rate_?)?sched(?:uler)?s?{_N}(?:_states?(?:_dict)?)?|lr_scheduler_state(?:_dict)?"
    r"|(?:current_|last_|base_)?(?:lr|learning_rate)s?",
    "optimizer": rf"(?:\w+_)?optim(?:izer)?s?{_N}(?:_states?(?:_dict)?)?",
    "rng": r"(?:\w+_)?rng(?:_?states?)?(?:_all)?(?:_\d+)?|(?:\w+_)?random_(?:states?(?:_\d+)?|seed)|"
    r"(?:torch|numpy|cuda|torch_cuda|python)_(?:manual_|random_)?(?:seed|states?)",
    "sampler": rf"(?:\w+_)?(?:sampler|data_?loaders?|loader|dataset|datamodule|dl_state_dict){_N}"
    rf"(?:_states?(?:_dict)?)?|(?:\w+_)?(?:position|cursor|offset)|(?:data_|sample_|shuffle_)?(?:order|perm|permutation)"
    r"|(?:batch|sample|example|data|item|shard)_?(?:idx|index|indices|no|num(?:ber)?)|batch(?:es)?(?:_(?:run|done|seen))?",
    "model": rf"(?:ema_?|best_?)?(?:models?|net|network|module|pytorch_model|adapter_model){_N}(?:_ema)?"
    rf"(?:_states?(?:_dict)?)?|state_dict|weights|ema",
    "step": rf"(?:\w+_)?(?:steps?|iter|iters|iterations?|iter_num|epochs?|it){_N}|loops|"
    r"(?:samples|tokens)_seen|num_updates",
    "metrics": r"callbacks|log_history|history|metrics|results|scores?|(?:\w+_)?(?:loss|losses|acc|accuracy|ppl|"
    r"perplexity|metric|f1|auc|bleu|reward|score)(?:_\w+)?",
}
_PARTS = {part: re.compile(words) for part, words in _WORDS.items()}
_LARGE: tuple[Part, ...] = ("scaler", "scheduler", "optimizer", "rng", "sampler", "model")  # parts with large tensors
_RANK = re.compile(r"(?:^|[./:_-])(?:rank|rng_state|random_states?)[_-]?(\d+)(?![\d])")
_GENERATOR = re.compile(r"(?:\w+[._])?generators?(?:_states?)?(?:\.\d+)?")
_LR = re.compile(r".*param_groups\.\d+\.(?:initial_)?lr")
_FIRST = 3  # number of first words of a key that are matched, as in `trainer.optimizer.state`

assert set(_WORDS) == set(get_args(Part))


def rank_of(place: str) -> int | None:
    """Returns the rank that a key like `rank2.rng.torch`, or a file like `rng_state_2.pth`, names, or None."""
    found = _RANK.search(place)
    return int(found[1]) if found else None


def part_of(file: str, key: str, elements: int | None = None) -> Part:
    """Returns the part of the training to which a key belongs.

    `file`: the file's name, or "" for an unknown file. `elements`: the number of a tensor's elements, or None for
    another value. A tensor that fits no other part belongs to the model.
    """
    words = key.lower().split(".")
    if _LR.fullmatch(key):
        return "scheduler"
    if _GENERATOR.fullmatch(key):  # the key is a torch.Generator's; a model with this name has longer keys
        return "rng"
    tensor, large = elements is not None, elements is not None and elements > 1
    stem = file.rpartition("/")[2].partition(".")[0].lower()
    by_file = _match(stem, _LARGE) if stem else None
    if by_file == "rng" and key == "step":
        return "step"  # accelerate stores the step in its file of random states
    if by_file not in (None, "model"):
        return by_file or "other"
    for word in words[:_FIRST]:
        if found := _match(word, _LARGE if large else tuple(_PARTS)):
            return found
    if by_file or tensor:
        return "model"
    return "metrics" if _match(stem, ("metrics",)) else "other"


def _match(word: str, parts: tuple[Part, ...]) -> Part | None:
    return next((part for part in parts if _PARTS[part].fullmatch(word)), None)
