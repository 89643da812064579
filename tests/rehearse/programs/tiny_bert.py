"""Makes, in the working folder, what accelerate's examples load by name: a tiny BERT, pairs of sentences, a metric."""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", *(f"word{i}" for i in range(200))]
METRIC = """\
import datasets
import evaluate

class Glue(evaluate.Metric):
    def _info(self):
        numbers = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=numbers)

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(references)}
"""
CARD = """\
---
configs:
- config_name: mrpc
  data_files:
  - {split: train, path: train.jsonl}
  - {split: validation, path: validation.jsonl}
---
"""

model, data = Path("bert-base-cased"), Path("nyu-mll/glue")
shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
BertForSequenceClassification(BertConfig(vocab_size=len(WORDS), **shape)).save_pretrained(model)
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(model)
data.mkdir(parents=True)
(data / "README.md").write_text(CARD)
dice = random.Random(0)
for part, pairs in (("train", 3200), ("validation", 64)):
    rows = []
    for i in range(pairs):
        one, other = (" ".join(dice.choices(WORDS[2:], k=8)) for _ in range(2))
        rows.append({"idx": i, "sentence1": one, "sentence2": other, "label": i % 2})
    (data / f"{part}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
Path("glue").mkdir()
Path("glue/glue.py").write_text(METRIC)
