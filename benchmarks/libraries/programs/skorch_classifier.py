"""Fits digits by skorch's NeuralNetClassifier."""

import sys

from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from torch import nn

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
X, y = load_digits(return_X_y=True)
X = (X / 16).astype("float32")


class Net(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 10)
        )

    def forward(self, X):
        return self.layers(X)


net = NeuralNetClassifier(
    Net,
    criterion=nn.CrossEntropyLoss,
    max_epochs=epochs,
    lr=0.1,
    batch_size=32,
    iterator_train__shuffle=True,
)
net.fit(X, y.astype("int64"))
