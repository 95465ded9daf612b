"""Runs a program and writes down how it trains, with hooks of its own: with and without autotune.

    python -P recorder.py RECORDING STEPS MORE SEED [-m MODULE] PROGRAM ARGS

Starts a module (``autotune.inside.train`` and its arguments) where one is named, else the program
as Python itself would. The parameters after STEPS optimizer steps are kept; the process ends after
MORE of them, or earlier where that takes long. Of several ranks, the first one writes. A program
without an optimizer object makes a step after each backward pass.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import runpy
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from functools import wraps
from pathlib import Path
from time import monotonic
from typing import Any

import numpy
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim import optimizer as optim
from torch.utils.data import dataloader

SAMPLED = 4096  # values of the parameters that are kept, evenly from all
LONGEST_S = 60.0  # of a process that makes more steps than are compared
ROWS = 256  # of a batch, whose inputs are told apart
ITERATOR = dataloader._BaseDataLoaderIter  # noqa: SLF001 - all ways of loading meet there


class Step:
    """What was seen since the last optimizer step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.batches: list[int] = []
        self.calls: list[int] = []
        self.rows: list[str] = []
        self.ids, self.integers, self.inputs = (hashlib.sha1() for _ in range(3))  # noqa: S324

    def add_batch(self, batch: Any, ids: Any) -> None:
        """Note what a loader hands out, and which items it is made of."""
        tensors = list(_tensors_in(batch))
        sized = [t for t in tensors if t.dim()]
        self.batches.append(len(sized[0]) if sized else 1)
        floats = [t for t in tensors if t.is_floating_point()]
        for tensor in tensors:
            kind = self.inputs if tensor.is_floating_point() else self.integers
            kind.update(_bytes_of(tensor))
        self.ids.update(repr(ids).encode())
        if ids is None:
            self.ids.update(self.integers.digest())
        if floats and floats[0].dim() > 1:
            self.rows += [_digest(row) for row in floats[0][:ROWS]]

    def facts(self, rates: list[float], gradient: float, moved: float) -> dict[str, Any]:
        """Return it as it is written, with what is known once the step is made."""
        return {
            "losses": self.losses,
            "samples": sum(self.batches) if self.batches else sum(self.calls),
            "rates": rates,
            "ids": self.ids.hexdigest() if self.batches else "",
            "integers": self.integers.hexdigest(),
            "inputs": self.inputs.hexdigest(),
            "rows": self.rows,
            "gradient": gradient,
            "moved": moved,
        }


class Recorder:
    """Notes losses, batches, rates and movements until enough steps were made.

    Args:
        path: Where the recording goes.
        compared: Optimizer steps after which the parameters are kept.
        limit: Steps after which the process ends.
    """

    def __init__(self, path: Path, compared: int, limit: int) -> None:
        self._path, self._compared, self._limit = path, compared, limit
        self._started = monotonic()
        self._parameters: list[list[float]] = [[], []]
        self._step, self._steps = Step(), list[dict[str, Any]]()
        self._roots: dict[nn.Module, None] = {}
        self._begun: dict[nn.Parameter, torch.Tensor] = {}
        self._rates: list[float] = []
        self._gradient = 0.0
        self._depth = {"backward": 0, "call": 0, "step": 0}
        self._has_optimizer = self._is_written = False
        self._waits = False  # for the program to move its parameters by hand

    def install(self) -> None:
        """Begin to listen."""
        self._follow_backward()
        self._follow_calls()
        self._follow_batches()
        original = Optimizer.__init__
        recorder = self

        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            recorder._follow_steps(type(optimizer))
            original(optimizer, *args, **kwargs)
            recorder._has_optimizer = True

        Optimizer.__init__ = init  # type: ignore[assignment,method-assign]
        optim.register_optimizer_step_pre_hook(self._before_step)
        optim.register_optimizer_step_post_hook(self._after_step)

    def end(self, reason: str) -> None:
        """Write the recording, once."""
        if self._is_written or os.environ.get("RANK", "0") != "0":
            return
        self._is_written = True
        if len(self._steps) < self._compared:
            self._parameters = self._sampled()
        begun, parameters = self._parameters
        written = {
            "steps": self._steps,
            "ended": reason,
            "begun": begun,
            "parameters": parameters,
        }
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(written), encoding="utf-8")
        part.replace(self._path)

    def _follow_backward(self) -> None:
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if not self._depth["backward"]:
                self._next_by_hand()
                begins = [tensors] if isinstance(tensors, torch.Tensor) else tensors
                self._step.losses += [float(t.detach().float().sum()) for t in begins]
            self._depth["backward"] += 1
            try:
                original(tensors, *args, **kwargs)
            finally:
                self._depth["backward"] -= 1
            if not self._depth["backward"] and not self._has_optimizer:
                own = [p for root in self._roots for p in root.parameters()]
                self._note_parameters(own)
                self._gradient = _norm(p.grad for p in own if p.grad is not None)
                self._waits = True

        torch.autograd.backward = backward

    def _next_by_hand(self) -> None:
        """The program begins another step: what it did since its last backward was one."""
        if self._waits:
            self._waits = False
            self._close_step()

    def _follow_calls(self) -> None:
        original = nn.Module.__call__
        recorder = self

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            is_within = recorder._depth["call"] or recorder._depth["backward"]  # computed again
            if torch.compiler.is_compiling() or is_within:
                return original(module, *args, **kwargs)
            recorder._called(module, args or tuple(kwargs.values()))
            recorder._depth["call"] += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                recorder._depth["call"] -= 1

        nn.Module.__call__ = call  # type: ignore[method-assign]

    def _called(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled() or not any(True for _ in module.parameters()):
            return
        self._next_by_hand()
        self._roots[module] = None
        first = next((t for t in _tensors_in(inputs) if t.dim()), None)
        self._step.calls.append(1 if first is None else len(first))

    def _follow_batches(self) -> None:
        """See the items of each batch where they are drawn, and the batch where it comes out."""
        original_index, original_next, original_reset = (
            ITERATOR._next_index,  # noqa: SLF001
            ITERATOR.__next__,
            ITERATOR._reset,  # noqa: SLF001
        )

        def next_index(iterator: Any) -> Any:
            index = original_index(iterator)  # type: ignore[no-untyped-call]
            vars(iterator).setdefault("_drawn_ids", deque()).append(index)
            return index

        def next_batch(iterator: Any) -> Any:
            batch = original_next(iterator)
            drawn = vars(iterator).get("_drawn_ids")
            ids = drawn.popleft() if drawn else None
            if torch.is_grad_enabled():
                self._next_by_hand()
                self._step.add_batch(batch, None if _is_blank(ids) else ids)
            return batch

        def reset(iterator: Any, *args: Any, **kwargs: Any) -> None:
            vars(iterator)["_drawn_ids"] = deque()
            original_reset(iterator, *args, **kwargs)

        ITERATOR._next_index = next_index  # type: ignore[method-assign]  # noqa: SLF001
        ITERATOR.__next__ = next_batch  # type: ignore[assignment,method-assign]
        ITERATOR._reset = reset  # type: ignore[assignment,method-assign]  # noqa: SLF001

    def _follow_steps(self, cls: Any) -> None:
        """Look in at what the class itself does: within all hooks, autotune's too."""
        own = cls.step
        if hasattr(own, "hooked"):  # torch's hooks are around it, and this within them
            return
        recorder = self

        @wraps(own)  # GradScaler looks at the signature
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            recorder._about_to_step(optimizer)
            return own(optimizer, *args, **kwargs)

        cls.step = step

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Begin a step."""
        self._depth["step"] += 1
        self._note_parameters(p for g in optimizer.param_groups for p in g["params"])

    def _about_to_step(self, optimizer: Optimizer) -> None:
        if self._depth["step"] == 1 or not self._rates:
            self._rates = [float(g["lr"]) for g in optimizer.param_groups if "lr" in g]
        own = [p for g in optimizer.param_groups for p in g["params"]]
        self._gradient = _norm(p.grad for p in own if p.grad is not None)

    def _after_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._depth["step"] -= 1
        if not self._depth["step"]:
            self._close_step()

    def _close_step(self) -> None:
        moved = _norm(_local(p) - begun for p, begun in self._begun.items())
        self._steps.append(self._step.facts(self._rates, self._gradient, moved))
        self._step, self._rates = Step(), []
        count = len(self._steps)
        if count == self._compared:
            self._parameters = self._sampled()
        is_late = monotonic() - self._started > LONGEST_S
        if count >= self._limit or (count >= self._compared and is_late):
            self.end("")
            sys.stdout.flush()
            os._exit(0)

    def _note_parameters(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter not in self._begun:
                self._begun[parameter] = _local(parameter).clone()

    def _sampled(self) -> list[list[float]]:
        """Values of all parameters, at first and now; none where a rank holds a part of them."""
        if not self._begun or any(hasattr(p, "full_tensor") for p in self._begun):
            return [[], []]
        return [_evenly(self._begun.values()), _evenly(map(_local, self._begun))]


def _evenly(tensors: Iterable[torch.Tensor]) -> list[float]:
    """Values from all tensors, in their order."""
    whole = torch.cat([t.reshape(-1) for t in tensors])
    picked = torch.linspace(0, len(whole) - 1, min(SAMPLED, len(whole))).round().long()
    return [float(v) for v in whole[picked.to(whole.device)]]


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's values, of a sharded one this rank's, in one type and order."""
    values = parameter.detach()
    values = values.to_local() if hasattr(values, "to_local") else values
    return values.float().contiguous()


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    squares = (float(_local(t.to_dense()).double().square().sum()) for t in tensors)
    return float(sum(squares) ** 0.5)


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors_in(part)
    elif hasattr(value, "values") and callable(value.values):
        yield from _tensors_in(list(value.values()))


def _is_blank(ids: Any) -> bool:
    """A stream has no ids: torch counts None."""
    return ids is None or (isinstance(ids, list) and all(i is None for i in ids))


def _bytes_of(tensor: torch.Tensor) -> bytes:
    values = tensor.detach().cpu().to_dense().contiguous()
    return (
        values.float().numpy().tobytes()
        if values.is_floating_point()
        else repr(values.reshape(-1).tolist()).encode()
    )


def _digest(row: torch.Tensor) -> str:
    return hashlib.sha1(_bytes_of(row)).hexdigest()[:12]  # noqa: S324 - nothing secret


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)  # noqa: NPY002 - what programs draw from
    torch.manual_seed(seed)


def main(path: str, steps: str, more: str, seed: str, *command: str) -> None:
    """Run and record; the program's own end is that of the process."""
    recorder = Recorder(Path(path), int(steps), int(more))
    recorder.install()
    _seed(int(seed))
    try:
        if command[0] == "-m":
            sys.argv = list(command[1:])
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(command)
            sys.path.insert(0, str(Path(command[0]).resolve().parent))
            runpy.run_path(command[0], run_name="__main__")
    except BaseException as error:
        is_end = isinstance(error, SystemExit) and not error.code
        last = traceback.format_exception_only(error)[-1].splitlines()[0]
        recorder.end("the program ended" if is_end else last)
        raise
    recorder.end("the program ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
