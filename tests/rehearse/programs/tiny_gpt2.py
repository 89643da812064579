"""Makes a tiny GPT-2, its tokenizer and a data set of texts in the working folder: `model` and `texts`."""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

WORDS = ["<end>", "<unknown>", *(f"word{i}" for i in range(200))]
shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), bos_token_id=0, eos_token_id=0, **shape)).save_pretrained("model")
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unknown>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
special = {"unk_token": "<unknown>", "eos_token": "<end>", "bos_token": "<end>", "pad_token": "<unknown>"}
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained("model")
dice = random.Random(0)
Path("texts").mkdir()
rows = [json.dumps({"text": " ".join(dice.choices(WORDS[2:], k=30))}) for _ in range(1000)]
Path("texts/train.jsonl").write_text("\n".join(rows))
