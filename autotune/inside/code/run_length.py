"""Read from the program how many epochs it trains."""

from __future__ import annotations

import ast
import operator
from collections.abc import Sequence
from types import FrameType

from autotune.inside.code.loops import (
    FOREVER,
    UNREADABLE,
    Around,
    Calls,
    Limit,
    batch_loop,
    header_limits,
    loops_around,
    own_nodes,
)
from autotune.measurement.epoch import RunLength
from autotune.program.flags import Flag

EPOCHS = frozenset(f"{before}epochs" for before in ("", "num_", "n_", "n", "max_", "num_train_"))
UNKNOWN = RunLength()
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def epochs_of(frames: Sequence[FrameType], asked: Calls) -> RunLength:
    """Return how many rounds the loop around that of the batches makes.

    Covered: ``for epoch in range(first, last)``, with numbers, names of numbers, and their sums,
    differences and products. Unknown where the program may leave that loop early, and where another
    loop surrounds it, as in a cross-validation.

    Args:
        frames: The stack at a step, the innermost frame first.
        asked: The program's calls when it last asked the training loader for a batch; may be empty.
    """
    try:
        loops = loops_around(frames)
    except UNREADABLE:
        return UNKNOWN
    inner = batch_loop(loops, asked)
    if inner is None or len(loops) != inner + 2:
        return UNKNOWN
    epochs = loops[inner + 1]
    may_leave = any(isinstance(node, (ast.Break, ast.Return)) for node in own_nodes(epochs.node))
    return UNKNOWN if may_leave else _rounds(epochs)


def epochs_by_flag(flags: Sequence[Flag]) -> RunLength:
    """Return what the program's flag for the number of epochs says, if it has one."""
    meant = (flag for flag in flags if flag.words & EPOCHS and flag.number)
    return next((RunLength(flag.number, f"{flag.name} {flag.number}") for flag in meant), UNKNOWN)


def _rounds(loop: Around) -> RunLength:
    for limit in header_limits(loop):
        last, first = _value(limit, limit.value), _value(limit, _first(loop, limit.value))
        if last is not None and first is not None and 0 < last - first < FOREVER:
            return RunLength(last - first, limit.said)
    return UNKNOWN


def _value(limit: Limit, node: ast.expr) -> float | None:
    """Return the value of an expression at this step; None if it is not read without running it."""
    if not isinstance(node, ast.BinOp):
        return limit.number(node)
    left, right = _value(limit, node.left), _value(limit, node.right)
    operation = OPERATIONS.get(type(node.op))
    return None if left is None or right is None or operation is None else operation(left, right)


def _first(loop: Around, last: ast.expr) -> ast.expr:
    """Return where a range begins whose end is known."""
    assert not isinstance(loop.node, ast.While), "only a for loop has a range"
    calls = (n for n in ast.walk(loop.node.iter) if isinstance(n, ast.Call))
    found = next(call for call in calls if last in call.args)
    place = found.args.index(last)
    return found.args[place - 1] if place else ast.Constant(0)
