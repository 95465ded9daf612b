"""The loops of the program that are running at a step, read from their source.

They are found on the call stack. Nothing of the program is run: the values of names are read from
the frames.
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
FOREVER = 1e8  # steps; a larger number means "until something else ends the loop"
Loop = ast.For | ast.AsyncFor | ast.While
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Calls = Sequence[tuple[CodeType, int]]
UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError)
SIZES = {"len", "size", "shape", "numel", "num_batches"}


@dataclass(frozen=True)
class Known:
    """Facts about the program that its source does not show.

    Attributes:
        flags: The program's command-line options with their values.
        steps_per_epoch: Of the training loader; None if it has no length.
    """

    flags: Sequence[Flag] = ()
    steps_per_epoch: int | None = None


def calls_of(frames: Sequence[FrameType]) -> Calls:
    """Return the program's own calls among frames, as code and line.

    Frames must not be kept, because they keep all local variables alive.
    """
    return [(f.f_code, f.f_lineno) for f in frames if is_programs(f.f_code)]


@dataclass(frozen=True)
class Around:
    """A loop that is running at a step: its source, its frame and its file's syntax tree."""

    node: Loop
    frame: FrameType
    tree: ast.Module

    def is_over(self, asked: Calls) -> bool:
        """Return whether the loop's header asks for the batches."""
        if isinstance(self.node, ast.While):
            return False
        last = self.node.iter.end_lineno or self.node.lineno
        return any(c is self.frame.f_code and self.node.lineno <= line <= last for c, line in asked)

    def holds(self, asked: Calls) -> bool:
        """Return whether the batches are asked for inside the loop."""
        last = self.node.end_lineno or self.node.lineno
        return any(c is self.frame.f_code and self.node.lineno <= line <= last for c, line in asked)

    @cached_property
    def counters(self) -> frozenset[str]:
        """Names that count the loop's rounds: they go up by one and are not reset within it.

        Attributes that any code of the file increments count too.
        """
        counted = {*self.variables, *_incremented(self.node, attributes=False)}
        counted |= set(_incremented(self.tree, attributes=True))
        return frozenset(counted - self.reset)

    @cached_property
    def reset(self) -> frozenset[str]:
        """Names that the loop sets to a constant."""
        assigned = (n for n in ast.walk(self.node) if isinstance(n, ast.Assign))
        return frozenset(
            last_name(target)
            for node in assigned
            if isinstance(node.value, ast.Constant)
            for target in node.targets
        )

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names of the header that count the loop's rounds."""
        return frozenset(_target_counters(self.node))


@dataclass(frozen=True)
class Limit:
    """An expression that may limit the rounds of a loop.

    Attributes:
        value: The expression.
        loop: The loop.
        line: Where the limit stands.
        text: The source of the limit, for messages.
        counter: The name that is compared with it; empty if it stands in the loop's header.
    """

    value: ast.expr
    loop: Around
    line: int
    text: str
    counter: str = ""

    @property
    def said(self) -> str:
        """The place and the source of the limit, as messages show them."""
        return f"{Place(self.loop.frame.f_code.co_filename, self.line)}: {self.text}"

    def is_fixed(self, known: Known) -> bool:
        """Return whether the limit is a number that the program was given, other than 0.

        A number that the program computes from its data is not given. Zero often means "no limit".
        """
        return self._is_given(self.value, known) and self.number(self.value) != 0

    def _is_given(self, node: ast.expr, known: Known) -> bool:
        """Return whether an expression is made of constants and given numbers alone."""
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
        """Return whether a name stands for a given number: a flag, a constant or an argument.

        Lengths are not given. A name that the file sets to nothing but constants is given.
        Otherwise a multiple of the steps per epoch is taken for a number computed from the length
        of the data.
        """
        name = last_name(node)
        if name in SIZES:
            return False
        if flag := next((f for f in known.flags if name.lower() in f.words), None):
            return bool(flag.number)
        number = self.number(node)
        if number is None or not 0 <= number < FOREVER:
            return False
        written = _written(self.loop.tree, name)
        if written and all(isinstance(value, ast.Constant) for value in written):
            return True
        return not known.steps_per_epoch or number % known.steps_per_epoch != 0

    def number(self, node: ast.expr) -> float | None:
        """Return the expression's value at this step, read without running code of the program."""
        value = node.value if isinstance(node, ast.Constant) else self._value(node)
        return value if isinstance(value, (int, float)) else None

    def _value(self, node: ast.expr) -> object:
        """Return what a name or attribute stands for in the loop's frame; None if unknown."""
        frame = self.loop.frame
        match node:
            case ast.Name(name):
                return frame.f_locals.get(name, frame.f_globals.get(name))
            case ast.Attribute(owner, name):
                return inspect.getattr_static(self._value(owner), name, None)
            case _:
                return None


def loops_around(frames: Sequence[FrameType]) -> list[Around]:
    """Return the loops that are running, the innermost first.

    Raises:
        OSError: when there is no source, or when a library's loop makes the steps.
    """
    found: list[Around] = []
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
        found += [Around(node, frame, tree) for node in around]
    return found


def _loops_at(tree: ast.Module, line: int) -> list[Loop]:
    """Return the loops around a line, the innermost first, up to the function that contains it."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, Scope | Loop) and node.lineno <= line <= (node.end_lineno or line)
    ]
    around.sort(key=lambda node: (node.lineno, node.col_offset), reverse=True)
    loops = takewhile(lambda node: not isinstance(node, Scope), around)
    return [node for node in loops if isinstance(node, Loop)]


def batch_loop(loops: Sequence[Around], asked: Calls) -> int | None:
    """Return the place of the loop that gets the training batches; None if it is not among them.

    Args:
        loops: The running loops, the innermost first.
        asked: The program's calls when it last asked the training loader for a batch; may be empty.
    """
    over = (n for n, loop in enumerate(loops) if loop.is_over(asked))
    holding = (n for n, loop in enumerate(loops) if not asked or loop.holds(asked))
    return next(over, next(holding, None))


def header_limits(loop: Around) -> Iterator[Limit]:
    """Yield the limit in a ``for`` loop's iterable: the end of a ``range`` or an ``islice``."""
    if isinstance(loop.node, ast.While):
        return
    text = f"for {ast.unparse(loop.node.target)} in {ast.unparse(loop.node.iter)}"
    for call in (n for n in ast.walk(loop.node.iter) if isinstance(n, ast.Call)):
        is_range = last_name(call.func) in {"range", "trange"} and len(call.args) in {1, 2}
        is_slice = last_name(call.func) == "islice" and len(call.args) in {2, 3}
        if is_range or is_slice:
            # the position of the end among the arguments, by their number
            place = {1: 0, 2: 1, 3: 2}[len(call.args)]
            yield Limit(call.args[place], loop, loop.node.lineno, text)


def own_nodes(loop: Loop) -> Iterator[ast.AST]:
    """Yield the nodes of a loop's body, but not those in nested loops, functions and classes."""
    todo: list[ast.AST] = list(loop.body)
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, Loop | Scope):
            todo += ast.iter_child_nodes(node)


def _target_counters(node: Loop) -> Iterator[str]:
    """Yield the loop variable that counts rounds in the header of a ``for`` loop."""
    if isinstance(node, ast.While):
        return
    called = {last_name(n.func) for n in ast.walk(node.iter) if isinstance(n, ast.Call)}
    if called & {"enumerate", "count", "range", "trange"}:
        target = node.target
        yield last_name(target.elts[0] if isinstance(target, ast.Tuple) else target)


def _incremented(tree: ast.AST, *, attributes: bool) -> Iterator[str]:
    """Yield the names that ``+= 1`` increments.

    Args:
        tree: Where to look.
        attributes: Yield only attributes, such as ``self.step``, which another method may
            increment.
    """
    for node in ast.walk(tree):
        match node:
            case ast.AugAssign(target, ast.Add(), ast.Constant(1)):
                if isinstance(target, ast.Attribute) or not attributes:
                    yield last_name(target)


def _written(tree: ast.Module, name: str) -> list[ast.expr]:
    """Return the expressions that a file gives to a name.

    They include annotated assignments, keyword arguments of calls and default values of parameters.
    """
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets, value) if name in map(last_name, targets):
                found.append(value)
            case ast.AnnAssign(target, _, ast.expr() as value) if last_name(target) == name:
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


def last_name(node: ast.AST) -> str:
    """Return a variable's or attribute's last name; empty for other expressions."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
