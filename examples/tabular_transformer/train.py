"""Train a transformer over the columns of a table: scikit-learn's bundled breast cancer data.

Each column of a row becomes one token, as in the FT-Transformer (Gorishniy et al., 2021).
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Loader = DataLoader[tuple[Tensor, ...]]

WIDTH, HEADS, LAYERS = 32, 4, 2


class TabularTransformer(nn.Module):
    """A transformer encoder over the columns of a row and one more token, which tells the class."""

    def __init__(self, columns: int) -> None:
        """Builds the layers; each column has an embedding that its value scales, and a bias."""
        super().__init__()
        self.scale = nn.Parameter(torch.randn(columns, WIDTH) / WIDTH**0.5)
        self.bias = nn.Parameter(torch.zeros(columns, WIDTH))
        self.summary = nn.Parameter(torch.zeros(1, 1, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1))

    def forward(self, rows: Tensor) -> Tensor:
        """Maps (batch, columns) standardised values to (batch,) logits of a benign tumour."""
        tokens = rows.unsqueeze(-1) * self.scale + self.bias
        summary = self.summary.expand(len(rows), -1, -1)
        encoded = self.encoder(torch.cat([summary, tokens], dim=1))
        logits: Tensor = self.head(encoded[:, 0]).squeeze(-1)
        return logits


def build_datasets(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Returns the training rows and the test rows, standardised by the training rows."""
    rows, labels = load_breast_cancer(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        rows, labels, test_size=0.2, stratify=labels, random_state=seed
    )
    scaler = StandardScaler().fit(train_x)
    train, test = (
        TensorDataset(
            torch.tensor(scaler.transform(x), dtype=torch.float32),
            torch.tensor(y, dtype=torch.float32),
        )
        for x, y in ((train_x, train_y), (test_x, test_y))
    )
    return train, test


def train_epoch(
    model: nn.Module, loader: Loader, optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[float, float]:
    """Trains for one epoch and returns the mean loss and the throughput in rows/s."""
    model.train()
    loss_sum, count = torch.zeros((), device=device), 0
    start_s = time.perf_counter()
    for batch in loader:
        rows, labels = (part.to(device) for part in batch)
        loss = nn.functional.binary_cross_entropy_with_logits(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach() * len(rows)
        count += len(rows)
    mean_loss = loss_sum.item() / count  # .item() waits for the device, so the clock is right
    return mean_loss, count / (time.perf_counter() - start_s)


@torch.no_grad()
def evaluate(model: nn.Module, loader: Loader, device: torch.device) -> float:
    """Returns the accuracy in 0..1."""
    model.eval()
    correct, count = 0, 0
    for batch in loader:
        rows, labels = (part.to(device) for part in batch)
        correct += int(((model(rows) > 0) == (labels > 0.5)).sum())
        count += len(rows)
    return correct / count


def parse_args() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("tabular.pt"), help="checkpoint path")
    return parser.parse_args()


def main() -> None:
    """Trains, evaluates after the last epoch and saves the weights."""
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = build_datasets(args.seed)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=128)
    model = TabularTransformer(train_set.tensors[0].shape[1]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-2)

    rates = []
    for epoch in range(1, args.epochs + 1):
        loss, rate = train_epoch(model, train_loader, optimizer, device)
        rates.append(rate)
        print(f"epoch {epoch}: loss {loss:.4f}, {rate:.1f} samples/s")
    print(f"test accuracy {evaluate(model, test_loader, device):.4f}")
    torch.save(model.state_dict(), args.out)
    if len(rates) > 1:
        print(f"training throughput after epoch 1: {statistics.median(rates[1:]):.1f} samples/s")


if __name__ == "__main__":
    main()
