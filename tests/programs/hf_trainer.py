"""Trains by the Trainer of Hugging Face, for two short epochs with evaluation."""

import sys

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(Dataset):
    def __init__(self, count):
        self.tokens = torch.randint(100, (count, 12))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": int(tokens[0] > 50)}


if __name__ == "__main__":
    config = BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=2,
    )
    arguments = TrainingArguments(
        output_dir=sys.argv[1],
        num_train_epochs=2,
        per_device_train_batch_size=8,
        eval_strategy="epoch",
        save_strategy="steps",
        save_steps=20,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=Sentences(int(sys.argv[2]) if len(sys.argv) > 2 else 400),
        eval_dataset=Sentences(80),
    )
    result = trainer.train()
    print("ended after", result.global_step, "steps")
