"""A Python file of the user's as text in which calls get arguments and lines are added.

Only what is written is changed: everything else keeps its bytes, comments and line ends included.
Nothing is written to the file; ``diff()`` shows what would be.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

INDENT = "    "
NEIGHBOURS = "the line cannot be changed without its neighbours"
# What follows the imports of a module
CODE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While, ast.With, ast.If)


class Unplaced(Exception):
    """Nothing can be written with certainty; its text says why, as a clause."""


@dataclass(frozen=True)
class Edit:
    """Bytes from *start* to *end* that become a text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Source:
    """One file.

    Attributes:
        name: As the diff names it, with ``/`` between folders.
        text: Its content.

    Raises:
        SyntaxError: It is no Python.
    """

    name: str
    text: str
    tree: ast.Module = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", ast.parse(self.text))

    @cached_property
    def _content(self) -> bytes:
        return self.text.encode()  # where ast counts columns

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer(rb"\r\n|\r|\n", self._content))]

    @cached_property
    def _end_of_line(self) -> str:
        return "\r\n" if b"\r\n" in self._content else "\n"

    @cached_property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        """What each node is in."""
        return {n: outer for outer in ast.walk(self.tree) for n in ast.iter_child_nodes(outer)}

    def find(self, name: str) -> Iterator[ast.Call]:
        """Yield the calls of a name, whatever it is an attribute of."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and _last(node.func) == name:
                yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node is part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node is in, the innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def others_of(self, name: str) -> Iterator[ast.expr | ast.stmt | ast.alias]:
        """Yield where a class gets another name, as ``import … as``, a subclass or a partial."""
        for node in ast.walk(self.tree):
            match node:
                case ast.alias(name=of, asname=str()) if of == name:
                    yield node
                case ast.ClassDef(bases=parts) if name in map(_last, parts):
                    yield node
                case ast.Assign(value=value) if _last(value) == name:
                    yield node
                case ast.Call(func=func, args=parts) if name in map(_last, parts):
                    if _last(func) not in {"isinstance", "issubclass"}:
                        yield node

    def place(self, node: ast.expr | ast.stmt | ast.alias) -> str:
        """Return where a node is: ``train.py:41``."""
        return f"{self.name}:{node.lineno}"

    def loop(self, node: ast.AST) -> ast.For | None:
        """Return the innermost ``for`` loop around a node."""
        return next((one for one in self.around(node) if isinstance(one, ast.For)), None)

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements of the block that one is in."""
        around = self.parents[statement]
        blocks = (getattr(around, name, []) for name in ("body", "orelse", "finalbody"))
        return next((one for one in blocks if statement in one), [statement])

    # --- edits ----------------------------------------------------------------------------------

    def with_arguments(self, call: ast.Call, values: Mapping[str, str]) -> Iterator[Edit]:
        """Yield the edits that give a call keyword arguments, as code by their names."""
        written = {one.arg: one.value for one in call.keywords if one.arg is not None}
        for name in written.keys() & values.keys():
            yield Edit(*self._span(written[name]), values[name])
        new = [f"{name}={value}" for name, value in values.items() if name not in written]
        if not new:
            return
        ends = [self._span(one)[1] for one in (*call.args, *(one.value for one in call.keywords))]
        end = max(ends, default=self._span(call)[1] - 1)
        yield Edit(end, end, f"{', ' if ends else ''}{', '.join(new)}")

    def before(self, statement: ast.stmt, line: str) -> Edit:
        """Return the edit that puts a line before a statement, which has to begin one."""
        start = self._starts[statement.lineno - 1]
        blank = self._content[start : start + statement.col_offset]
        if blank.strip():
            raise Unplaced(f"{self.place(statement)} shares its line")
        return Edit(start, start, f"{blank.decode()}{line}{self._end_of_line}")

    def within(self, statements: list[ast.stmt], header: str) -> list[Edit]:
        """Return the edits that put statements of one block under a header.

        Text that spans lines would change with its indentation.
        """
        first, last = statements[0].lineno, statements[-1].end_lineno or 0
        texts = (
            node.lineno != node.end_lineno
            for one in statements
            for node in ast.walk(one)
            if isinstance(node, ast.JoinedStr | ast.Constant)
        )
        if any(texts) or not self._ends_line(statements[-1]):
            raise Unplaced(f"{self.place(statements[0])} cannot be indented")
        above = self.before(statements[0], header)
        starts = [self._starts[n] for n in range(first - 1, last)]
        blank = [one for one in starts if not self._line(one).strip()]
        inner = [Edit(one, one, INDENT) for one in starts[1:] if one not in blank]
        return [Edit(above.start, above.end, f"{above.text}{INDENT}"), *inner]

    def after_imports(self, lines: Iterable[str] = ()) -> list[Edit]:
        """Return the edits that put lines after the module's first imports, with torch by name."""
        before_code = takewhile(lambda one: not isinstance(one, CODE), self.tree.body)
        imports = [n for n in before_code if isinstance(n, ast.Import | ast.ImportFrom)]
        names = {
            alias.asname or alias.name.partition(".")[0]
            for one in imports
            if isinstance(one, ast.Import)
            for alias in one.names
        }
        end = (imports[-1].end_lineno or 0) if imports and self._ends_line(imports[-1]) else 0
        if end in {0, len(self._starts)}:  # or else the file ends with them, without a newline
            raise Unplaced(f"{self.name} has no imports to put it after")
        at = self._starts[end]
        needed = [] if "torch" in names else [Edit(at, at, f"import torch{self._end_of_line}")]
        text = "".join(f"{line}{self._end_of_line}" for line in lines)
        return [*needed, *([Edit(at, at, f"{self._end_of_line}{text}")] if text else [])]

    def edited(self, edits: list[Edit]) -> Source:
        """Return the file with edits, those at one place in their order; they may not collide."""
        content, upto = self._content, len(self._content)
        in_order = sorted(dict.fromkeys(edits), key=lambda one: (one.start, one.end))
        for one in reversed(in_order):
            if one.end > upto:
                raise Unplaced(NEIGHBOURS)
            content = content[: one.start] + one.text.encode() + content[one.end :]
            upto = one.start
        try:
            return Source(self.name, content.decode())
        except SyntaxError:
            raise Unplaced(NEIGHBOURS) from None

    def _ends_line(self, node: ast.stmt) -> bool:
        after = self._line(self._span(node)[1]).strip()
        return not after or after.startswith(b"#")

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None, "ast.parse tells it"
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _line(self, start: int) -> bytes:
        return self._content[start:].splitlines()[0] if self._content[start:] else b""


def dotted(node: ast.AST) -> str:
    """Return a name with what it is an attribute of, ``self.model``; empty for other code."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name) if inner := dotted(value):
            return f"{inner}.{name}"
        case _:
            return ""


def _last(node: ast.AST) -> str:
    return dotted(node).rpartition(".")[2]


def called(node: ast.AST) -> Iterator[str]:
    """Yield the names of what is called within a node."""
    return (dotted(one.func) for one in ast.walk(node) if isinstance(one, ast.Call))


def assigned(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement assigns to."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))


def diff(before: Source, after: Source) -> str:
    """Return the difference of two versions as ``git apply`` and ``patch -p1`` read it."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", one.text) for one in (before, after))
    end = "\t" * (" " in before.name)  # where patch takes a name to end
    names = f"a/{before.name}{end}", f"b/{after.name}{end}"
    lines = difflib.unified_diff(old, new, *names)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
