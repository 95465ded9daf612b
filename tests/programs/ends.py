"""Trains a step, and ends in the way that the first argument names; in the last of several ranks.

The second argument says who starts the ranks: a launcher, or else the program itself.
"""

import os
import signal
import subprocess
import sys


def end(way: str) -> None:
    """End in one of five ways."""
    match way:
        case "raises":
            raise ValueError("no such column")
        case "exits":
            sys.exit(3)
        case "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "host memory":
            raise MemoryError
        case "device memory":
            from torch import OutOfMemoryError

            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def train(rank: int, ranks: int, way: str, port: str = "") -> None:
    """Make a step; then the last rank ends, and the others wait for it."""
    import torch
    from torch import distributed

    if port:
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port)
    if ranks:
        distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.ones(8, 1))
    for (x,) in torch.utils.data.DataLoader(data, shuffle=True):
        model(x).sum().backward()
        optimizer.step()
        if distributed.get_rank() == 1:  # autotune's own ranks are there by now
            end(way)
        if ranks:
            distributed.barrier()


def start_again(way: str, port: str) -> None:
    """Start this script as the second rank, as Lightning's script launcher does."""
    if "LOCAL_RANK" not in os.environ:
        os.environ.update(LOCAL_RANK="0", WORLD_SIZE="2")
        again = [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]]
        subprocess.Popen(again, env={**os.environ, "LOCAL_RANK": "1"})
    train(int(os.environ["LOCAL_RANK"]), 2, way, port)


if __name__ == "__main__":
    way, starter, *port = sys.argv[1:]
    if starter == "nobody":
        end(way)
    elif starter == "launcher":
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), way)
    elif starter == "autotune":
        train(0, 0, way)
    elif starter == "script":
        start_again(way, *port)
    else:
        import torch.multiprocessing as mp

        mp.start_processes(train, (2, way, *port), nprocs=2, start_method=starter)
