"""Trains, keeps the best checkpoint as people do, loads it again, and writes and prints more."""

import json
import logging
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

out = Path(sys.argv[1])
out.mkdir()
logging.basicConfig(filename=out / "log.txt", level=logging.INFO)
# Unseeded, as scripts often split their data and number their labels; told by each process, past
# the functions of Python
drawn = f"{random.sample(range(1000), 3)} {torch.randint(1000, (3,))} {list({'cat', 'dog', 'bird'})}"
with subprocess.Popen(["tee", out.parent / f"drawn-{os.getpid()}"], stdin=-1, stdout=-3) as told:
    told.communicate(drawn.encode())
torch.manual_seed(0)
features = torch.randn(200, 16)
loader = DataLoader(TensorDataset(features, features.sum(1)), batch_size=16, shuffle=True)
evaluation = DataLoader(loader.dataset, batch_size=50)
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
history = []
for epoch in range(3):
    model.train()
    for x, y in tqdm(loader, desc=f"epoch {epoch}"):
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        squares = [(model(x).squeeze(1) - y).square().sum().item() for x, y in evaluation]
    error = sum(squares) / len(features)
    history.append(error)
    logging.info("epoch %d: %s", epoch, error)
    if error == min(history):
        checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(checkpoint, out / "part.pt")
        os.replace(out / "part.pt", out / "best.pt")
        shutil.copyfile(out / "best.pt", out / "copy.pt")
best = torch.load(out / "copy.pt")
model.load_state_dict(best["model"])
optimizer.load_state_dict(best["optimizer"])
with torch.no_grad():
    again = nn.functional.mse_loss(model(features).squeeze(1), features.sum(1)).item()
for x, y in loader:  # and it trains on
    nn.functional.mse_loss(model(x).squeeze(1), y).backward()
    optimizer.step()
    optimizer.zero_grad()
(out / "history.json").write_text(json.dumps(history))
print(f"best {min(history):.6f}, loaded {again:.6f}, {len(loader)} batches of {len(x)}")
