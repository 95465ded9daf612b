"""Makes texts of words, and a small language model with a tokenizer for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

END = "<eos>"


def words(file: Path, count: int, different: int) -> None:
    """Write a text of words in lines of 20; few of them are frequent, as in English."""
    file.parent.mkdir(parents=True, exist_ok=True)
    shares = 1 / np.arange(1, different + 1)
    drawn = np.random.default_rng(0).choice(different, count, p=shares / shares.sum())
    lines = (" ".join(f"w{n}" for n in drawn[i : i + 20]) for i in range(0, count, 20))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def language_model(folder: Path) -> None:
    """Write a small GPT-2 whose tokens are words, and texts for it."""
    import tokenizers
    import transformers

    kinds = {END: 0, **{f"w{n}": n + 1 for n in range(5000)}}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(kinds))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    wrapped: Any = transformers.PreTrainedTokenizerFast
    wrapped(tokenizer_object=plain, eos_token=END).save_pretrained(folder / "model")
    config = transformers.GPT2Config(
        vocab_size=len(kinds),
        n_positions=256,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "model")
    words(folder / "words.txt", 400_000, 5000)
    lines = (folder / "words.txt").read_text(encoding="utf-8").splitlines()
    texts = (json.dumps({"text": " ".join(lines[i : i + 5])}) for i in range(0, len(lines), 5))
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "train.jsonl").write_text("\n".join(texts) + "\n", encoding="utf-8")
