"""Read from the program how many epochs or steps it trains."""

from __future__ import annotations

import ast
import operator
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from types import FrameType

from autotune.inside.code.bounds import FLAGS as STEPS
from autotune.inside.code.bounds import fixed_limit
from autotune.inside.code.loops import (
    FOREVER,
    UNREADABLE,
    Around,
    Calls,
    Known,
    Limit,
    batch_loop,
    header_limits,
    last_name,
    loops_around,
    own_nodes,
)
from autotune.program.flags import Flag
from autotune.program.run_length import RunLength

EPOCHS = frozenset(f"{before}epochs" for before in ("", "num_", "n_", "n", "max_", "num_train_"))
EVALUATING = ("val", "eval", "test", "dev")  # how names of phases begin
UNKNOWN = RunLength()
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def length_of(
    frames: Sequence[FrameType], asked: Calls, known: Known, batches_per_step: float
) -> RunLength | None:
    """Return how many steps the program makes where it counts them, else how many epochs.

    Epochs are the rounds of the loop around that of the batches. Covered: ``for epoch in
    range(first, last)``, with numbers, names of numbers, and their sums, differences and products.
    A loop over listed phases, as ``for phase in ("train", "val")``, belongs to the epoch. Unknown
    where the program may leave the loop over the epochs early, and where another loop surrounds it,
    as in a cross-validation: then ``RunLength.unknown`` says so. A limit on the batches of each
    epoch is taken as it stands; a counter that begins at 0 may allow one more.

    Args:
        frames: The stack at a step, the innermost frame first.
        asked: The program's calls when it last asked the training loader for a batch; may be empty.
        known: Facts that the source does not show.
        batches_per_step: What a step consists of. With more than one, a counter may count either.

    Returns:
        The length, with its numbers None if the code does not tell; None if it cannot be read.
        What a flag says counts only where ``unknown`` is empty.
    """
    try:
        loops = loops_around(frames)
    except UNREADABLE:
        return None
    inner = batch_loop(loops, asked)
    if inner is None:
        return None
    loops = loops[inner:]
    limit = fixed_limit(loops, known)
    if limit is None:
        return _epochs(loops[1:])
    most = _value(limit, limit.value) if limit.counter else _rounds(loops[0])[0]
    if _comes_again(limit, loops):
        if not limit.counter and not loops[0].is_over(asked):
            return RunLength(unknown="its loop takes some batches from an endless iterator")
        counts_batches = _counts_batches(limit, loops[0], batches_per_step)
        return replace(_epochs(loops[1:]), batches=(most or None) if counts_batches else None)
    counts_steps = batches_per_step == 1.0
    return RunLength(steps=most, where=limit.said) if counts_steps and most else UNKNOWN


def steps_by_flag(flags: Sequence[Flag]) -> RunLength:
    """Return what the program's flag for the number of steps says, if it has one."""
    steps, said = _flag(flags, STEPS)
    return RunLength(steps=steps, where=said)


def epochs_by_flag(flags: Sequence[Flag]) -> RunLength:
    """Return what the program's flag for the number of epochs says, if it has one."""
    return RunLength(*_flag(flags, EPOCHS))


def _flag(flags: Sequence[Flag], words: frozenset[str]) -> tuple[float | None, str]:
    meant = (flag for flag in flags if flag.words & words and flag.number)
    return next(((flag.number, f"{flag.name} {flag.number}") for flag in meant), (None, ""))


def _comes_again(limit: Limit, loops: Sequence[Around]) -> bool:
    """Return whether a limit holds for each round of a surrounding loop anew."""
    batches, *around = loops
    if not limit.counter or limit.counter in batches.variables:
        return bool(around)
    return any(limit.counter in outer.reset for outer in around)


def _counts_batches(limit: Limit, loop: Around, batches_per_step: float) -> bool:
    """Return whether a limit on each epoch is one on batches, as opposed to optimizer steps."""
    is_rounds = not limit.counter or limit.counter in loop.variables
    return is_rounds or batches_per_step == 1.0


def _epochs(around: Sequence[Around]) -> RunLength:
    """Return the rounds of the only loop around that of the batches, or around its phases."""
    phases = [*takewhile(_is_over_phases, around)]
    around = around[len(phases) :]
    if not around:
        return UNKNOWN
    if len(around) > 1:
        return RunLength(unknown="another loop surrounds that over the epochs")
    (loop,) = around
    leaving = [node for node in own_nodes(loop.node) if isinstance(node, ast.Break | ast.Return)]
    for phase in phases:
        if phase.frame is loop.frame:
            leaving += [node for node in own_nodes(phase.node) if isinstance(node, ast.Return)]
    if leaving:
        return RunLength(unknown="the program may leave its loop over the epochs early")
    epochs, said = _rounds(loop)
    return RunLength(epochs, where=said) if epochs else UNKNOWN


def _is_over_phases(loop: Around) -> bool:
    """Return whether a loop trains in one of its rounds, and evaluates in the others.

    Its header lists the names of the phases, one of which is that of training.
    """
    match loop.node:
        case ast.For(_, ast.List(listed) | ast.Tuple(listed)):
            names = [str(node.value).lower() for node in listed if isinstance(node, ast.Constant)]
            trains = sum("train" in name for name in names)
            evaluates = sum(name.startswith(EVALUATING) for name in names)
            return trains == 1 and 0 < evaluates == len(listed) - 1
        case _:
            return False


def _rounds(loop: Around) -> tuple[float | None, str]:
    """Return how many rounds a loop's header allows, and where; None if it does not tell."""
    for limit in header_limits(loop):
        last, first = _value(limit, limit.value), _value(limit, _first(loop, limit.value))
        if last is not None and first is not None and 0 < last - first < FOREVER:
            return last - first, limit.said
    return None, ""


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
    numbers = found.args[last_name(found.func) == "islice" :]  # without what it takes them from
    place = numbers.index(last)
    return numbers[place - 1] if place else ast.Constant(0)
