"""Compilation: the work of torch.compile while a config was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Compilation:
    """What torch.compile did while turns were taken.

    Attributes:
        seconds: Time spent compiling, forward and backward.
        graphs: Number of graphs; a model without graph breaks has one.
        recompiles: How often code was compiled again because a guard failed, for instance on a
            shape.
        graph_breaks: Number of places where the model falls back to Python.
    """

    seconds: float
    graphs: int
    recompiles: int
    graph_breaks: int

    def __str__(self) -> str:
        notes = [
            f"{count} {name}{'s' if count > 1 else ''}"
            for count, name in (
                (self.recompiles, "recompilation"),
                (self.graph_breaks, "graph break"),
            )
            if count
        ]
        return ", ".join([f"compiled in {self.seconds:.0f}s", *notes])
