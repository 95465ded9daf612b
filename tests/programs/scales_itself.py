"""Draws its own batches; scales its rate with the batch and warms it up from zero."""

import argparse
from itertools import count

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
batch = parser.parse_args().batch_size
torch.manual_seed(0)
model = nn.Linear(8, 4)
rate = 0.01 * (batch / 16) ** 0.5
optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 50))
for step in count():
    before = model.bias.detach().clone()
    optimizer.zero_grad()
    model(torch.randn(batch, 8)).mean().backward()
    optimizer.step()
    schedule.step()
    if step == 3:  # the gradient of the bias is constant, so AdamW moves it by the rate
        print(f"{float((before - model.bias.detach()).mean()) / 0.01:.4f}", flush=True)
