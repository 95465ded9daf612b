"""Trains a SentenceTransformer made of a config and of made-up words on pairs of sentences."""

import random
import sys
import tempfile

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import CosineSimilarityLoss
from sentence_transformers.models import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(200))]


def make_model(folder):
    with open(f"{folder}/vocab.txt", "w") as vocab:
        vocab.write("\n".join(WORDS))
    BertTokenizerFast(vocab_file=f"{folder}/vocab.txt").save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    transformer = Transformer(folder, max_seq_length=32)
    return SentenceTransformer(modules=[transformer, Pooling(64)], device="cpu")


def made_pairs(count=1600):
    rng = random.Random(0)
    rows = {"sentence1": [], "sentence2": [], "score": []}
    for _ in range(count):
        first, second = (rng.choices(WORDS[5:], k=12) for _ in range(2))
        kept = rng.randint(0, 12)
        rows["sentence1"].append(" ".join(first))
        rows["sentence2"].append(" ".join(first[:kept] + second[kept:]))
        rows["score"].append(kept / 12)
    return Dataset.from_dict(rows)


def main():
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(folder)
        args = SentenceTransformerTrainingArguments(
            output_dir=f"{folder}/out",
            num_train_epochs=epochs,
            per_device_train_batch_size=16,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        )
        SentenceTransformerTrainer(
            model=model, args=args, train_dataset=made_pairs(), loss=CosineSimilarityLoss(model)
        ).train()


if __name__ == "__main__":
    main()
