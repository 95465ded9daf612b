"""Bounds: whether the loop that makes the steps makes a number of them, whatever a batch holds.

The loop is found on the stack of an untouched step and read in its source: the innermost one that
asked the training loader for batches, or that holds where it was asked. Its header, the conditions
under which it is left, and the loops around it tell what ends it.

Covered: ``range``, ``trange`` and ``islice``, ``while step < most``, ``if step >= most: break`` or
``return`` beside the step. Not covered, and answered by None: loops without source, loops of
libraries, batches that another thread asks for.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType

import torch

from autotune.inside.code.frames import Place, is_programs
from autotune.program.flags import Flag

TORCHS = str(Path(torch.__file__).parent)
FOREVER = 1e8  # steps; a larger number is nobody's plan
COUNTS = "max", "num", "n", "total", "train", "max_train", "num_train", "training"
FLAGS = frozenset(
    f"{before}{word}"
    for word in ("steps", "iters", "iterations")
    for before in ("", *(f"{count}_" for count in COUNTS))
)
Loop = ast.For | ast.AsyncFor | ast.While
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Calls = Sequence[tuple[CodeType, int]]
SIZES = {"len", "size", "shape", "numel", "num_batches"}


@dataclass(frozen=True)
class Known:
    """What is known besides the source.

    Attributes:
        flags: Of the program, with their values.
        steps_per_epoch: Of the training loader, None without a length.
    """

    flags: Sequence[Flag] = ()
    steps_per_epoch: int | None = None


def calls_of(frames: Sequence[FrameType]) -> Calls:
    """Return the program's own calls among frames, which may be kept."""
    return [(f.f_code, f.f_lineno) for f in frames if is_programs(f.f_code)]


def bound_of(frames: Sequence[FrameType], asked: Calls, known: Known) -> str | None:
    """Return where the program says how many steps it makes; empty where its data end the loop.

    Args:
        frames: On the stack at a step, the innermost first.
        asked: The program's calls when it last asked the training loader for a batch.
        known: What is known besides the source.
    """
    try:
        loops = _loops(frames)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    over = (n for n, loop in enumerate(loops) if loop.is_over(asked))
    holding = (n for n, loop in enumerate(loops) if not asked or loop.holds(asked))
    inner = next(over, next(holding, None))
    if inner is None:
        return None
    batches = loops[inner]
    found = [*_header(batches), *_ends(batches, batches.counters)]
    for outer in loops[inner + 1 :]:
        found += _ends(outer, batches.counters)
    return next((limit.said for limit in found if limit.is_fixed(known)), "")


def bound_by_flag(flags: Sequence[Flag]) -> str:
    """Return the flag by which the program is told how many steps to make, empty without one."""
    meant = (flag for flag in flags if flag.words & FLAGS and flag.number)
    return next((f"{flag.name} {flag.number}" for flag in meant), "")


@dataclass(frozen=True)
class _Around:
    """A loop that runs at a step: its source, and the frame in which it runs."""

    node: Loop
    frame: FrameType
    tree: ast.Module

    def is_over(self, asked: Calls) -> bool:
        """Its header asks for the batches."""
        if isinstance(self.node, ast.While):
            return False
        last = self.node.iter.end_lineno or self.node.lineno
        return any(c is self.frame.f_code and self.node.lineno <= line <= last for c, line in asked)

    def holds(self, asked: Calls) -> bool:
        """Batches are asked for within it."""
        last = self.node.end_lineno or self.node.lineno
        return any(c is self.frame.f_code and self.node.lineno <= line <= last for c, line in asked)

    @cached_property
    def counters(self) -> frozenset[str]:
        """Names that count its rounds: none is ever set back within it."""
        counted = {*_target_counters(self.node), *_incremented(self.node, attributes=False)}
        counted |= set(_incremented(self.tree, attributes=True))
        assigned = (n for n in ast.walk(self.node) if isinstance(n, ast.Assign))
        reset = {
            _name(target)
            for node in assigned
            if isinstance(node.value, ast.Constant)
            for target in node.targets
        }
        return frozenset(counted - reset)


@dataclass(frozen=True)
class _Limit:
    """An expression that says how many rounds a loop makes at most."""

    value: ast.expr
    loop: _Around
    line: int
    text: str

    @property
    def said(self) -> str:
        return f"{Place(self.loop.frame.f_code.co_filename, self.line)}: {self.text}"

    def is_fixed(self, known: Known) -> bool:
        """It is a number that the program was given, not one that it derives from its data."""
        return self._is_given(self.value, known) and self._number(self.value) != 0

    def _is_given(self, node: ast.expr, known: Known) -> bool:
        match node:
            case ast.Constant(int() | float()):
                return True
            case ast.Name() | ast.Attribute():
                return self._is_given_name(node, known)
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult(), right):
                return self._is_given(left, known) and self._is_given(right, known)
            case ast.Call(ast.Name("int"), [inner]):
                return self._is_given(inner, known)
            case _:
                return False

    def _is_given_name(self, node: ast.Name | ast.Attribute, known: Known) -> bool:
        name = _name(node)
        if name in SIZES:
            return False
        if flag := next((f for f in known.flags if name.lower() in f.words), None):
            return bool(flag.number)
        number = self._number(node)
        if number is None or not 0 <= number < FOREVER:
            return False
        written = _written(self.loop.tree, name)
        if written and all(isinstance(value, ast.Constant) for value in written):
            return True
        return not known.steps_per_epoch or number % known.steps_per_epoch != 0

    def _number(self, node: ast.expr) -> float | None:
        """Its value now, as far as that can be told without running the program's code."""
        value = node.value if isinstance(node, ast.Constant) else self._value(node)
        return value if isinstance(value, (int, float)) else None

    def _value(self, node: ast.expr) -> object:
        frame = self.loop.frame
        match node:
            case ast.Name(name):
                return frame.f_locals.get(name, frame.f_globals.get(name))
            case ast.Attribute(owner, name):
                return inspect.getattr_static(self._value(owner), name, None)
            case _:
                return None


def _loops(frames: Sequence[FrameType]) -> list[_Around]:
    """Return the loops that run, the innermost first.

    Raises:
        OSError: where there is no source, or a library's loop makes the steps.
    """
    found: list[_Around] = []
    for frame in frames:
        if frame.f_code.co_filename.startswith(TORCHS):
            continue
        lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
        if not lines:
            raise OSError("no source")
        tree = ast.parse("".join(lines))
        around = _loops_at(tree, frame.f_lineno)
        if around and not is_programs(frame.f_code):
            raise OSError("a library's loop")
        found += [_Around(node, frame, tree) for node in around]
    return found


def _loops_at(tree: ast.Module, line: int) -> list[Loop]:
    """Return the loops around a line, the innermost first, within its function."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, Scope | Loop) and node.lineno <= line <= (node.end_lineno or line)
    ]
    around.sort(key=lambda node: (node.lineno, node.col_offset), reverse=True)
    loops = takewhile(lambda node: not isinstance(node, Scope), around)
    return [node for node in loops if isinstance(node, Loop)]


def _header(loop: _Around) -> Iterator[_Limit]:
    """Yield how many rounds a loop's iterable has."""
    if isinstance(loop.node, ast.While):
        return
    text = f"for {ast.unparse(loop.node.target)} in {ast.unparse(loop.node.iter)}"
    for call in (n for n in ast.walk(loop.node.iter) if isinstance(n, ast.Call)):
        is_range = _name(call.func) in {"range", "trange"} and len(call.args) in {1, 2}
        is_slice = _name(call.func) == "islice" and len(call.args) in {2, 3}
        if is_range or is_slice:
            place = {1: 0, 2: 1, 3: 2}[len(call.args)]
            yield _Limit(call.args[place], loop, loop.node.lineno, text)


def _ends(loop: _Around, counters: frozenset[str]) -> Iterator[_Limit]:
    """Yield what a loop compares its counter with before it goes on, or leaves."""
    if isinstance(loop.node, ast.While):
        text = f"while {ast.unparse(loop.node.test)}"
        for value in _compared(loop.node.test, counters, (ast.Lt, ast.LtE, ast.NotEq)):
            yield _Limit(value, loop, loop.node.lineno, text)
    for node in _own_nodes(loop.node):
        if isinstance(node, ast.If) and (leaving := _leaving(node)):
            text = f"if {ast.unparse(node.test)}: {leaving}"
            for value in _compared(node.test, counters, (ast.Gt, ast.GtE, ast.Eq)):
                yield _Limit(value, loop, node.lineno, text)


def _leaving(node: ast.If) -> str:
    kinds = {ast.Break: "break", ast.Return: "return"}
    return next((kinds[type(s)] for s in node.body if type(s) in kinds), "")


def _own_nodes(loop: Loop) -> Iterator[ast.AST]:
    """Yield what a loop does itself, without the loops and functions within it."""
    todo: list[ast.AST] = list(loop.body)
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, Loop | Scope):
            todo += ast.iter_child_nodes(node)


def _compared(
    test: ast.expr, counters: frozenset[str], reaches: tuple[type[ast.cmpop], ...]
) -> Iterator[ast.expr]:
    """Yield what counters are compared with."""
    mirrored = {ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Lt: ast.Gt, ast.LtE: ast.GtE}
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            continue
        left, operator, right = node.left, type(node.ops[0]), node.comparators[0]
        if _counted(left) in counters and operator in reaches:
            yield right
        elif _counted(right) in counters and mirrored.get(operator, operator) in reaches:
            yield left


def _counted(node: ast.expr) -> str:
    """The counter in ``step`` and ``step + 1``."""
    return _name(node.left if isinstance(node, ast.BinOp) else node)


def _target_counters(node: Loop) -> Iterator[str]:
    """Yield what a loop's own header counts."""
    if isinstance(node, ast.While):
        return
    called = {_name(n.func) for n in ast.walk(node.iter) if isinstance(n, ast.Call)}
    if called & {"enumerate", "count", "range", "trange"}:
        target = node.target
        yield _name(target.elts[0] if isinstance(target, ast.Tuple) else target)


def _incremented(tree: ast.AST, *, attributes: bool) -> Iterator[str]:
    """Yield what goes up by one; of attributes wherever that is written."""
    for node in ast.walk(tree):
        match node:
            case ast.AugAssign(target, ast.Add(), ast.Constant(1)):
                if isinstance(target, ast.Attribute) or not attributes:
                    yield _name(target)


def _written(tree: ast.Module, name: str) -> list[ast.expr]:
    """Return what is written for a name in a file."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets, value) if name in map(_name, targets):
                found.append(value)
            case ast.AnnAssign(target, _, ast.expr() as value) if _name(target) == name:
                found.append(value)
            case ast.keyword(arg, value) if arg == name:
                found.append(value)
            case ast.arguments():
                args = [*node.posonlyargs, *node.args]
                given = [*zip(args[::-1], node.defaults[::-1], strict=False)]
                given += [
                    (a, v) for a, v in zip(node.kwonlyargs, node.kw_defaults, strict=True) if v
                ]
                found += [value for arg, value in given if arg.arg == name]
    return found


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
