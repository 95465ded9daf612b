"""Turns: configs alternate within the running program, a few steps at a time.

The parent sends a schedule ahead, so between two steps nothing waits for it. A switch happens at
the boundary between two steps, and its seconds lie between two edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from autotune.machine.probes.page_faults import page_faults
from autotune.measurement.turn import Turn
from autotune.program.applied_config import AppliedConfig
from autotune.rig.wire import TakeTurns


class Edges:
    """Marks moments on the timeline of the devices that compute, which are read only later.

    On a GPU, waiting for the device at each edge would keep the program from running ahead of it,
    and copies and loading from overlapping with its work. So an edge is a CUDA event on the stream
    that trains, and times are read once the schedule is over. On a CPU an edge is the time.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._gpus = sorted({device.index or 0 for device in devices if device.type == "cuda"})

    @property
    def run_ahead(self) -> bool:
        """Whether the program may go on before the device has done what it was given."""
        return bool(self._gpus)

    def mark(self) -> Any:
        """Return the moment at which all work that was given out until now is done."""
        if not self._gpus:
            return perf_counter()
        events = []
        for gpu in self._gpus:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(gpu))
            events.append(event)
        return events

    def settle(self) -> None:
        """Wait until all marked moments have passed."""
        for gpu in self._gpus:
            torch.cuda.synchronize(gpu)

    def seconds_between(self, begin: Any, end: Any) -> float:
        """Return the seconds from one moment to a later one; call ``settle()`` before.

        Between two edges lies the time of the slowest device (``torch.cuda.Event.elapsed_time``,
        which needs both events on one device).
        """
        if not self._gpus:
            return float(end - begin)
        pairs = zip(begin, end, strict=True)
        return float(max(a.elapsed_time(b) for a, b in pairs)) / 1000


@dataclass(frozen=True)
class Hands:
    """What turns need of the program.

    Attributes:
        switch: Applies a config.
        loss: Returns the last loss, still on its device; None if the program shows none.
        activity: Returns a number that grows while torch compiles or takes memory from a device.
    """

    switch: Callable[[AppliedConfig], None]
    loss: Callable[[], torch.Tensor | None] = lambda: None
    activity: Callable[[], int] = lambda: 0


class Turns:
    """Carries out one schedule, at the end of each step; of several ranks each has one."""

    clock = None  # the parts of steps are not timed

    def __init__(self, asked: TakeTurns, hands: Hands, edges: Edges) -> None:
        self._configs = asked.configs
        self._schedule = iter(asked.schedule)
        self._hands, self._edges = hands, edges
        self._taken: list[_Taken] = []
        self._activity = hands.activity()
        self.is_done = False
        self._end = edges.mark()
        self._leads_in = edges.run_ahead  # the answer before has left the device idle for one step
        self._next()

    def _next(self) -> None:
        planned = next(self._schedule, None)
        if planned is None:
            self.is_done = True
            return
        self._hands.switch(self._configs[planned.config])
        self._taken.append(_Taken(planned.config, planned.steps, self._end, self._edges.mark()))

    def step(self, samples: int, wait_s: float, tokens: int = 0) -> None:
        """Note the end of a step; at the end of a turn, switch to the next config."""
        self._end = self._edges.mark()
        turn = self._taken[-1]
        if self._leads_in:
            self._leads_in = False
            self._taken[-1] = _Taken(turn.config, turn.steps, self._end, self._end)
            return
        turn.ends.append(self._end)
        turn.faults.append(page_faults())
        turn.samples.append(samples)
        turn.wait_s += wait_s
        turn.tokens += tokens
        if len(turn.ends) < turn.steps:
            return
        activity = self._hands.activity()
        turn.is_quiet, self._activity = activity == self._activity, activity
        loss = self._hands.loss()  # a copy: compiled code may write over its outputs
        turn.loss = None if loss is None else loss.detach().clone()
        self._next()

    def disturb(self) -> None:
        """Note that the program does something besides training in the present step."""
        self._taken[-1].disturb()

    def resume(self) -> None:
        """Note that an epoch has ended and another begun within the present turn."""
        self.disturb()

    def close(self) -> None:
        """Drop a turn that is not whole, because the program ends."""
        self._taken = [turn for turn in self._taken if len(turn.ends) == turn.steps]

    def told(self) -> tuple[Turn, ...]:
        """Return the turns that were taken, in seconds; waits until the device has done them."""
        self._edges.settle()
        return tuple(turn.told(self._edges) for turn in self._taken)


class _Taken:
    """A turn that is being taken: the marks of its edges."""

    def __init__(self, config: int, steps: int, before: Any, begin: Any) -> None:
        self.config, self.steps = config, steps
        self.before, self.begin = before, begin
        self.ends: list[Any] = []
        self.faults = [page_faults()]
        self.samples: list[int] = []
        self.wait_s, self.tokens = 0.0, 0
        self.loss: torch.Tensor | None = None
        self.is_quiet = True
        self._disturbed: set[int] = set()

    def disturb(self) -> None:
        """Note that the present step is not training alone."""
        self._disturbed.add(len(self.ends))

    def told(self, edges: Edges) -> Turn:
        """Return it in seconds."""
        marks = [self.begin, *self.ends]
        return Turn(
            self.config,
            tuple(map(edges.seconds_between, marks, self.ends)),
            tuple(self.samples),
            edges.seconds_between(self.before, self.begin),
            tuple(sorted(self._disturbed)),
            self.wait_s,
            self.tokens,
            None if self.loss is None else float(self.loss),
            self.is_quiet,
            tuple(after - before for before, after in pairwise(self.faults)),
        )


def of_ranks(turns: Sequence[Sequence[Turn]]) -> tuple[Turn, ...]:
    """Return the turns of several ranks as those of their group.

    A step takes as long as on the slowest rank, and has the samples of all; it is disturbed if it
    is on one of them.
    """
    return tuple(
        replace(
            of_one[0],
            seconds=tuple(map(max, *(turn.seconds for turn in of_one))),
            samples=tuple(map(sum, zip(*(turn.samples for turn in of_one), strict=True))),
            disturbed=tuple(sorted({place for turn in of_one for place in turn.disturbed})),
            tokens=sum(turn.tokens for turn in of_one),
            is_quiet=all(turn.is_quiet for turn in of_one),
            faults=(),  # which rank was slowest differs from step to step
        )
        for of_one in zip(*turns, strict=False)
    )
