"""What autotune costs a step: while it measures, and under `autotune run`.

    python -m benchmarks.overhead [--pairs 40]

In one process the same loop trains in turn without and with the seams (A B B A ...), each stretch
timed by the loop's own clock; processes differ in speed by more than the seams cost. *Measuring* is
the whole of a rig's inside while two configs of one speed take turns, messages included. *Running*
is `autotune run` with bf16 autocast from a best.yaml, against the same autocast written by hand.
"""

from __future__ import annotations

import argparse
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from statistics import median
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from autotune.inside.processes.lead_rank import LeadRank
from autotune.inside.seam_set import SeamSet
from autotune.inside.steering import Steering
from autotune.measurement.turn import PlannedTurn
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config
from autotune.program.fence_options import FenceKind
from autotune.program.lr import LrRule
from autotune.program.program import parse_program
from autotune.rig.wire import Link, Start, TakeTurns, ToRig
from benchmarks.record import as_figures, median_ratio, save

SKIPPED = 0.25  # of the steps: workers start, caches fill


class Train(Protocol):
    """Trains so many steps and returns seconds per step."""

    def __call__(self, steps: int, *, amp: bool) -> float:
        """Train."""


def make_mlp() -> Train:
    """Steps of 1-2 ms on two cores, most of it Python and launching operators."""
    data = TensorDataset(torch.randn(65_536, 64), torch.randint(10, (65_536,)))
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    return _loop(DataLoader(data, batch_size=16, shuffle=True), model)


def make_cnn() -> Train:
    """A worker loads; steps of some tens of milliseconds."""
    data = TensorDataset(torch.randn(4096, 3, 32, 32), torch.randint(10, (4096,)))
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return _loop(DataLoader(data, batch_size=32, shuffle=True, num_workers=1), model)


def make_gpt() -> Train:
    """A small transformer on token ids."""
    data = TensorDataset(torch.randint(256, (2048, 64)), torch.randint(256, (2048,)))

    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, -1]

    block = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
    model = nn.Sequential(
        nn.Embedding(256, 128), nn.TransformerEncoder(block, 2), Last(), nn.Linear(128, 256)
    )
    return _loop(DataLoader(data, batch_size=16, shuffle=True), model)


def _loop(loader: DataLoader[tuple[Tensor, ...]], model: nn.Module) -> Train:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(steps: int, *, amp: bool) -> float:
        skipped, began = round(SKIPPED * steps), 0.0
        for number, (x, y) in enumerate(islice(_endless(loader), steps)):
            if number == skipped:
                began = perf_counter()
            with torch.autocast("cpu", torch.bfloat16) if amp else nullcontext():
                output = model(x)
            loss = cross_entropy(output.float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (perf_counter() - began) / (steps - skipped)

    return train


def _endless(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    while True:
        yield from loader


# Steps of a stretch, and of a turn
PROGRAMS: dict[str, tuple[Callable[[], Train], int, int]] = {
    "launch-bound MLP": (make_mlp, 300, 150),
    "CNN with a worker": (make_cnn, 60, 12),
    "transformer": (make_gpt, 30, 6),
}
ROUNDS = 4  # in one answer
CONFIG = Config({"precision": "fp32", "cudnn": "default"})
TRAITS = ProgramTraits("cpu")


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    pairs = parser.parse_args().pairs
    figures = {}
    for name, (make, steps, turn) in PROGRAMS.items():
        figures[name] = {
            "measuring": _compare(make(), steps, pairs, _rig_inside(turn), by_hand_amp=False),
            "running": _compare(make(), steps, pairs, _run_seams(), by_hand_amp=True),
        }
    print(f"kept in {save('overhead', figures)}")


def _compare(
    train: Train, steps: int, pairs: int, seams: SeamSet, *, by_hand_amp: bool
) -> dict[str, object]:
    """Time stretches without and with the seams in turn."""

    def stretch(*, seamed: bool) -> float:
        if not seamed:
            return train(steps, amp=by_hand_amp)
        seams.install()
        try:
            return train(steps, amp=False)
        finally:
            seams.remove()

    stretch(seamed=True)
    stretch(seamed=False)
    raw, ratios = [], []
    for pair in range(pairs):
        order = (False, True) if pair % 2 == 0 else (True, False)
        times = {on: stretch(seamed=on) for on in order}
        raw.append(times[False])
        ratios.append(times[True] / times[False])
    ratio = median_ratio(ratios)
    raw_ms = 1e3 * median(raw)
    added_us = 1e3 * raw_ms * (ratio.estimate - 1)
    print(
        f"step {raw_ms:.2f} ms, ratio {ratio.estimate:.4f} "
        f"[{ratio.low:.4f}, {ratio.high:.4f}], {added_us:+.1f} us per step"
    )
    return {
        "raw_step_ms": round(raw_ms, 4),
        "ratio": as_figures(ratio),
        "added_us_per_step": round(added_us, 2),
        "pairs": pairs,
        "steps_per_stretch": steps,
    }


def _rig_inside(steps: int) -> SeamSet:
    """The inside of a rig whose parent asks for one schedule of turns after another."""
    ours, theirs = socket.socketpair()
    threading.Thread(target=_drain, args=(theirs,), daemon=True).start()
    commands: queue.SimpleQueue[ToRig] = queue.SimpleQueue()
    configs = tuple(
        AppliedConfig(CONFIG.replace(cudnn=choice), CONFIG, TRAITS, LrRule.NONE)
        for choice in ("default", "benchmark")  # acts alike on a CPU
    )
    for _ in range(10_000):
        commands.put(TakeTurns(configs, (PlannedTurn(0, steps), PlannedTurn(1, steps)) * ROUNDS))
    start = Start(parse_program(__file__, []), None, "", FenceKind.OVERLAY)
    return LeadRank(Link(ours), commands, start, perf_counter(), lambda: None).tracker.seams


def _run_seams() -> SeamSet:
    """What `autotune run` installs for bf16 autocast."""
    seams = SeamSet(None, None)
    bf16 = CONFIG.replace(precision="bf16")
    Steering(seams).apply(AppliedConfig(bf16, CONFIG, TRAITS, LrRule.NONE))
    return seams


def _drain(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


if __name__ == "__main__":
    main()
