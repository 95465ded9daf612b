"""``python -m tests.house``: figures of the house, computed from its files.

Imports count wherever they stand: at the top, within functions, and under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "autotune"
FACE = "autotune"  # the room of what stands in the package's root file, and of __main__


@cache
def modules() -> dict[str, Path]:
    """Return every module by its name below the package; the root's own is empty."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> dict[str, frozenset[str]]:
    """Return which modules of the package each one imports, anywhere in it."""
    return {name: frozenset(_imported(path)) - {name} for name, path in modules().items()}


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
                yield from (n.partition(".")[2] for n in names if n.split(".")[0] == "autotune")
            case ast.ImportFrom(level=0, module=str(module)) if module.split(".")[0] == "autotune":
                base = module.partition(".")[2]
                for alias in node.names:
                    full = f"{base}.{alias.name}".lstrip(".")
                    yield full if full in modules() else base


def room(module: str) -> str:
    """Return the room that a module stands in."""
    return FACE if module in {"", "__main__"} else module.split(".", maxsplit=1)[0]


def rooms() -> dict[str, frozenset[str]]:
    """Return which rooms each room imports; the version, in the root's own file, is no room."""
    return {
        one: frozenset(
            room(target)
            for name, targets in imports().items()
            if room(name) == one
            for target in targets
            if room(target) not in {one, FACE}
        )
        for one in {room(name) for name in modules()}
    }


def circle(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """Return a circle of imports, empty where there is none."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(graph[name]):
            if found := walk(target, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def chain(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the longest chain of imports in a graph without circles."""

    @cache
    def longest(name: str) -> tuple[str, ...]:
        below = [longest(target) for target in sorted(graph[name])]
        return (name, *max(below, key=len, default=()))

    chains: list[list[str]] = [list(longest(name)) for name in sorted(graph)]
    return max(chains, key=len)


def files_per_folder() -> Counter[str]:
    """Return how many modules lie in each folder, ``__init__.py`` left out."""
    return Counter(
        str(path.parent.relative_to(PACKAGE))
        for path in modules().values()
        if path.name != "__init__.py"
    )


def root_entries() -> list[str]:
    """Return the files and folders in the package's root."""
    return sorted(p.name for p in PACKAGE.iterdir() if p.name not in {"__pycache__", "py.typed"})


def docstrings() -> list[str]:
    """Return the docstrings of all modules, classes and functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in modules().values())
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, kinds))
    return [text for node in nodes if (text := ast.get_docstring(node)) is not None]


def comment_lines_per_100() -> float:
    """Return the lines with a comment per 100 lines of code; docstrings and blanks are neither."""
    comments = code = 0
    for path in modules().values():
        text = path.read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            comments += token.type == tokenize.COMMENT
        code += len(code_lines(text))
    return 100 * comments / code


def code_lines(text: str) -> set[int]:
    """Return the numbers of the lines that hold code."""
    skipped = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        starts_statement = previous in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
        is_docstring = token.type == tokenize.STRING and starts_statement
        if token.type not in skipped and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
        if token.type not in {tokenize.COMMENT, tokenize.NL}:
            previous = token.type
    return lines


def main() -> None:
    """Print the figures."""
    texts = docstrings()
    one_line = 100 * sum("\n" not in text for text in texts) / len(texts)
    words = statistics.median(len(text.split()) for text in texts)
    fullest = files_per_folder().most_common(4)
    print(f"root entries                     {len(root_entries())}")
    print(f"fullest folders                  {', '.join(f'{k} {n}' for k, n in fullest)}")
    print(f"rooms, longest chain             {' > '.join(chain(rooms()))}")
    print(f"modules, circle                  {' > '.join(circle(imports())) or 'none'}")
    if not circle(imports()):
        print(f"modules, longest chain           {len(chain(imports()))}")
    print(f"docstrings                       {len(texts)}")
    print(f"docstrings of one line           {one_line:.0f} %")
    print(f"words in the median docstring    {words:g}")
    print(f"comment lines per 100 of code    {comment_lines_per_100():.1f}")


if __name__ == "__main__":
    main()
