"""Train a small network beside 2 GiB on the device, with what programs do besides training."""

import argparse
import os

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=100_000)
parser.add_argument("--seconds", type=float, help="end after this time of training")
parser.add_argument("--gib", type=float, default=2.0)
parser.add_argument("--gpu", help="which GPU to use; '' trains on the CPU")
parser.add_argument("--forks", action="store_true", help="compute in a forked process first")
parser.add_argument("--compiled", action="store_true")
args = parser.parse_args()
if args.gpu is not None:
    os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu  # read when CUDA begins

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from training import Clock, best_device  # noqa: E402


def compute_in_fork() -> None:
    """CUDA refuses this where the parent has asked for its devices before."""
    child = os.fork()
    if not child:
        try:
            torch.cuda.init()
        except (AssertionError, RuntimeError) as error:  # without a GPU it says so
            os._exit("forked" in str(error))
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise RuntimeError("a forked process cannot use CUDA")


def main() -> None:
    torch.manual_seed(0)
    if args.forks:
        compute_in_fork()
    if args.gpu == "" and torch.cuda.device_count():
        raise RuntimeError("the GPUs are not hidden")
    device = best_device()
    table = torch.ones(int(args.gib * 2**30), dtype=torch.uint8, device=device)
    data = TensorDataset(torch.randn(6400, 256), torch.randint(10, (6400,)))
    loader = DataLoader(data, 64, shuffle=True, pin_memory=device.type == "cuda")
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    forward = torch.compile(model) if args.compiled else model
    kept, right = None, torch.zeros((), device=device)
    for x, y in Clock(device, args.seconds).batches(loader, args.epochs):
        x, y = x.to(device), y.to(device)
        scores = forward(x * table[0])
        loss = nn.functional.cross_entropy(scores, y)
        if kept is not None:  # the outputs of the step before
            right += (kept[0].argmax(1) == kept[1]).sum()
        kept = scores.detach(), y
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
