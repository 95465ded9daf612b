"""Trains a small BERT made of a config on made sequences, by Hugging Face's Trainer."""

import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)


class Sequences(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        drawn = torch.Generator().manual_seed(index)
        tokens = torch.randint(1, 100, (32,), generator=drawn)
        return {"input_ids": tokens, "labels": int(tokens.sum() % 2)}


def main():
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    config = BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, max_position_embeddings=64,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=16,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        )
        Trainer(
            model=BertForSequenceClassification(config), args=args, train_dataset=Sequences()
        ).train()


if __name__ == "__main__":
    main()
