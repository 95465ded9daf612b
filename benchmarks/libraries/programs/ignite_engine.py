"""Trains digits by ignite's create_supervised_trainer, with an evaluator after each epoch."""

import sys

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
x, y = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(x).float() / 16, torch.tensor(y))
train, val = random_split(data, [1497, 300], torch.Generator().manual_seed(0))
train_loader = DataLoader(train, batch_size=16, shuffle=True)
val_loader = DataLoader(val, batch_size=100)

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.8)
criterion = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, criterion, device="cpu")
metrics = {"accuracy": Accuracy(), "loss": Loss(criterion)}
evaluator = create_supervised_evaluator(model, metrics=metrics, device="cpu")


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    evaluator.run(val_loader)
    print(engine.state.epoch, evaluator.state.metrics, flush=True)


trainer.run(train_loader, max_epochs=epochs)
