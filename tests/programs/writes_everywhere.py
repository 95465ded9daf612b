"""Writes in its folder, in $HOME, below ~/.cache and in the temporary folder.

With a second argument, it also leaves a process and a segment of shared memory behind.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SEGMENT = Path("/dev/shm", os.environ["PICTURED"])


class SlowItems(Dataset):
    def __len__(self):
        return 192

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((8,), float(index)), torch.tensor([float(index % 2)])


def tell(what):
    """Past all fences, to the test; nobody listens any more once it has ended the command."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
        mouth.setblocking(False)
        mouth.sendto(what, f"\0{os.environ['PICTURED']}")


def main():
    epochs, *leaves = map(int, sys.argv[1:])
    out = Path("out")
    out.mkdir(exist_ok=True)
    downloads = Path.home() / ".cache" / "torch" / "hub"
    downloads.mkdir(parents=True, exist_ok=True)
    for name in ("kept.bin", "changed.bin"):
        (downloads / name).write_bytes(b"downloaded")
    if leaves:
        subprocess.Popen(["sleep", "900"], start_new_session=True)
        SEGMENT.write_bytes(bytes(1000))
    loader = DataLoader(SlowItems(), batch_size=16, shuffle=True)
    other = DataLoader(SlowItems(), batch_size=64, num_workers=1)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for epoch in range(epochs):
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tell(b"step")
        torch.save(model.state_dict(), out / "part.pt")
        os.replace(out / "part.pt", out / "best.pt")
        Path("notes.txt").open("a").write(f"epoch {epoch}\n")
        Path.home().joinpath("history").open("a").write("trained\n")
        (downloads / "changed.bin").write_bytes(b"changed after the first step")
        Path(tempfile.mkstemp(prefix="mine-")[1]).write_text("left")
        with torch.no_grad():
            for x, _ in other:
                model(x)


if __name__ == "__main__":
    main()
