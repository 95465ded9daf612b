"""Classifies made graphs by a GCN of torch_geometric, in batches of its DataLoader."""

import sys

import torch
from torch.nn import Linear
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool


def made_graph(seed):
    drawn = torch.Generator().manual_seed(seed)
    nodes = int(torch.randint(8, 24, (1,), generator=drawn))
    edges = torch.randint(0, nodes, (2, nodes * (2 + seed % 2)), generator=drawn)
    x = torch.randn(nodes, 8, generator=drawn)
    return Data(x=x, edge_index=edges, y=torch.tensor([seed % 2]))


class GCN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GCNConv(8, 64)
        self.conv2 = GCNConv(64, 64)
        self.lin = Linear(64, 2)

    def forward(self, x, edge_index, batch):
        x = self.conv1(x, edge_index).relu()
        x = self.conv2(x, edge_index)
        return self.lin(global_mean_pool(x, batch))


epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
train_loader = DataLoader([made_graph(n) for n in range(640)], batch_size=16, shuffle=True)
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = torch.nn.CrossEntropyLoss()
for epoch in range(epochs):
    model.train()
    for data in train_loader:
        out = model(data.x, data.edge_index, data.batch)
        loss = criterion(out, data.y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(epoch, round(loss.item(), 3), flush=True)
