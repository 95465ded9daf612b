"""Decide whether the training loop makes a fixed number of steps, whatever a batch holds.

Such a program makes the same number of steps with a larger batch, and so trains on more samples.
The loop is found on the call stack of an observed step and read from its source: it is the
innermost loop whose header asked the training loader for batches, or that contains the line where
they were asked for. Its header, its exit conditions and the loops around it tell what ends it.

Covered: ``range``, ``trange`` and ``islice``, ``while step < most``, ``if step >= most: break`` or
``return``. Not covered, and answered by None: loops without source, loops of libraries, batches
that another thread asks for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from types import FrameType

from autotune.inside.code.loops import (
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

COUNTS = "max", "num", "n", "total", "train", "max_train", "num_train", "training"
FLAGS = frozenset(
    f"{before}{word}"
    for word in ("steps", "iters", "iterations")
    for before in ("", *(f"{count}_" for count in COUNTS))
)


def bound_of(frames: Sequence[FrameType], asked: Calls, known: Known) -> str | None:
    """Return the place and text that fix the number of steps; empty if the data end the loop.

    Args:
        frames: The stack at a step, the innermost frame first.
        asked: The program's calls when it last asked the training loader for a batch; may be empty.
        known: Facts that the source does not show.

    Returns:
        For example ``train.py:12: for step in range(steps)``; None if the loop cannot be found or
        read.
    """
    try:
        loops = loops_around(frames)
    except UNREADABLE:
        return None
    inner = batch_loop(loops, asked)
    if inner is None:
        return None
    limit = fixed_limit(loops[inner:], known)
    return "" if limit is None else limit.said


def fixed_limit(loops: Sequence[Around], known: Known) -> Limit | None:
    """Return what fixes the number of steps; None if the data end the loop.

    Args:
        loops: The loop that gets the training batches and those around it, from the inside out.
        known: Facts that the source does not show.
    """
    batches, *around = loops
    found = [*header_limits(batches), *_ends(batches, batches.counters)]
    for outer in around:
        found += _ends(outer, batches.counters)
    return next((limit for limit in found if limit.is_fixed(known)), None)


def bound_by_flag(flags: Sequence[Flag]) -> str:
    """Return the program's flag and value for the number of steps; empty without such a flag.

    For example ``--max-steps 1000``. Flags whose value is 0 do not count.
    """
    meant = (flag for flag in flags if flag.words & FLAGS and flag.number)
    return next((f"{flag.name} {flag.number}" for flag in meant), "")


def _ends(loop: Around, counters: frozenset[str]) -> Iterator[Limit]:
    """Yield what a loop compares its counters with, in its condition or to leave the loop."""
    if isinstance(loop.node, ast.While):
        text = f"while {ast.unparse(loop.node.test)}"
        for counter, value in _compared(loop.node.test, counters, (ast.Lt, ast.LtE, ast.NotEq)):
            yield Limit(value, loop, loop.node.lineno, text, counter)
    for node in own_nodes(loop.node):
        if isinstance(node, ast.If) and (leaving := _leaving(node)):
            text = f"if {ast.unparse(node.test)}: {leaving}"
            for counter, value in _compared(node.test, counters, (ast.Gt, ast.GtE, ast.Eq)):
                yield Limit(value, loop, node.lineno, text, counter)


def _leaving(node: ast.If) -> str:
    """Return how the body of an ``if`` leaves the loop; empty if it does not."""
    kinds = {ast.Break: "break", ast.Return: "return"}
    return next((kinds[type(s)] for s in node.body if type(s) in kinds), "")


def _compared(
    test: ast.expr, counters: frozenset[str], reaches: tuple[type[ast.cmpop], ...]
) -> Iterator[tuple[str, ast.expr]]:
    """Yield counters and the expressions that they are compared with.

    Args:
        test: The condition.
        counters: Names that count rounds.
        reaches: The comparisons that count, with the counter on the left side.
    """
    mirrored = {ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Lt: ast.Gt, ast.LtE: ast.GtE}
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            continue
        left, operator, right = node.left, type(node.ops[0]), node.comparators[0]
        if _counted(left) in counters and operator in reaches:
            yield _counted(left), right
        elif _counted(right) in counters and mirrored.get(operator, operator) in reaches:
            yield _counted(right), left


def _counted(node: ast.expr) -> str:
    """Return the counter's name in ``step`` or in ``step + 1``."""
    return last_name(node.left if isinstance(node, ast.BinOp) else node)
