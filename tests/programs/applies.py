"""Trains by the trainer of a library in several ways, each in a copy of this process.

A way applies a best.yaml by the library's callback or does not. Each writes WAY.json: the losses,
bit for bit, whether a worker made the batches, and an error of autotune.
"""

import json
import os
import pickle
import sys
from importlib import import_module
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from autotune.errors import AutotuneError


class Points(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.tensor([index / 64, 1.0])
        return {"x": x, "y": x.sum(), "by_worker": get_worker_info() is not None}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.losses, self.by_worker = [], set()

    def forward(self, x, y, by_worker):
        self.by_worker.add(bool(by_worker.all()))
        loss = (self.layer(x).squeeze(1) - y).square().mean()
        self.losses.append(loss.item().hex())
        return {"loss": loss}


def train_by_lightning(net, callbacks):
    """The loader is built before the callback, as in most scripts of Lightning."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def training_step(self, batch, _number):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.1)

    loader = DataLoader(Points(), batch_size=8, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=callbacks(),
    )
    trainer.fit(Module(), loader)


def train_by_transformers(net, callbacks):
    import transformers

    arguments = transformers.TrainingArguments(
        output_dir="out",
        num_train_epochs=2,
        per_device_train_batch_size=8,
        learning_rate=0.1,
        optim="adamw_torch",
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model=net, args=arguments, train_dataset=Points(), callbacks=callbacks()
    )
    trainer.train()


def train(library, way):
    net, error = Net(), ""
    module = import_module(f"autotune.{library}")
    files = {"applied": "best.yaml", "batch": "batch.yaml", "search": "missing.yaml"}
    if way in {"search", "sent"}:
        os.environ["AUTOTUNE_RIG"] = "1"

    def callbacks():
        if way == "sent":  # to a process that has applied nothing yet
            sent = pickle.dumps(module.AutotuneCallback("best.yaml"))
            del os.environ["AUTOTUNE_RIG"]
            return [pickle.loads(sent)]
        return [module.AutotuneCallback(files[way])] if way in files else []

    try:
        {"lightning": train_by_lightning, "transformers": train_by_transformers}[library](
            net, callbacks
        )
    except AutotuneError as refused:
        error = str(refused)
    return {"losses": net.losses, "by_worker": sorted(net.by_worker), "error": error}


if __name__ == "__main__":
    library, *ways = sys.argv[1:]
    import_module(library)
    torch.manual_seed(0)
    for way in ways:
        if not (child := os.fork()):
            Path(f"{way}.json").write_text(json.dumps(train(library, way)))
            sys.stderr.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, way
