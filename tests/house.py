"""``python -m tests.house``: the laws of the house, computed from its files, and what breaks them.

``test_house.py`` keeps the laws. Imports count wherever they stand: at the top, within functions,
and under ``TYPE_CHECKING``.
"""

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "autotune"
FACE = "autotune"  # the room of what stands in the package's root file, and of __main__
MAX_ATTRIBUTES, MAX_CHAIN, MAX_CONSTANTS_PER_1000, SMALL_CODE_LINES = 12, 14, 3.0, 30
# Lines that each room may weigh, prose included
WEIGHTS = {
    "face": 600,
    "cli": 1_800,
    "tuning": 5_500,
    "sharing": 2_500,
    "rig": 4_200,
    "inside": 11_500,
    "knobs": 3_300,
    "program": 2_800,
    "measurement": 1_700,
    "results": 3_600,
    "machine": 1_500,
    "files": 400,
}
WEIGHED_WITH = {
    **dict.fromkeys((FACE, "api", "errors"), "face"),
    **dict.fromkeys(("report", "exports"), "results"),
}


@cache
def modules() -> dict[str, Path]:
    """Return every module by its name below the package; the root's own is empty."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def text_of(module: str) -> str:
    """Return a module's source."""
    return modules()[module].read_text(encoding="utf-8")


@cache
def tree_of(module: str) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse(text_of(module))


@cache
def imported_by(module: str, *, anywhere: bool = True) -> list[tuple[str, str]]:
    """Return what a module imports, as source and name; the name is empty for a whole module.

    Args:
        module: The module.
        anywhere: Also what is imported in functions, and for type checkers alone.
    """
    found = list[tuple[str, str]]()
    todo: list[ast.AST] = [tree_of(module)]
    while todo:
        node = todo.pop()
        match node:
            case ast.Import():
                found += [(alias.name, "") for alias in node.names]
            case ast.ImportFrom(level=0, module=str(source)):
                found += [(source, alias.name) for alias in node.names]
            case ast.ImportFrom():
                raise AssertionError(f"{module}: imports are absolute")
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not anywhere:
                pass
            case ast.If() if not anywhere and "TYPE_CHECKING" in ast.dump(node.test):
                todo.extend(node.orelse)
            case _:
                todo.extend(ast.iter_child_nodes(node))
    return found


@cache
def imports() -> dict[str, frozenset[str]]:
    """Return which modules of the package each one imports, anywhere in it."""
    return {name: frozenset(_targets(name)) - {name} for name in modules()}


def _targets(module: str) -> Iterator[str]:
    for source, name in imported_by(module):
        if source.split(".")[0] == "autotune":
            base = source.partition(".")[2]
            full = f"{base}.{name}".strip(".")
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
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def chain(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the longest chain of imports in a graph without circles."""

    @cache
    def longest(name: str) -> tuple[str, ...]:
        below = [longest(target) for target in sorted(graph[name])]
        return (name, *max(below, key=len, default=()))

    chains: list[list[str]] = [list(longest(name)) for name in sorted(graph)]
    return max(chains, key=len)


def circles_of_folders() -> list[str]:
    """Return pairs of folders of one room that reach each other, through files as well."""
    found = []
    for one in sorted({room(name) for name in modules()}):
        inner = [name for name in modules() if name.startswith(f"{one}.")]
        folders = sorted({name.split(".")[1] for name in inner if name.count(".") > 1})
        graph: dict[str, set[str]] = defaultdict(set)
        for name in inner:
            here = name.split(".")[1]
            there = {t.split(".")[1] for t in imports()[name] if t.startswith(f"{one}.")}
            graph[here] |= there - {here}
        reached = {folder: _reached(graph, folder) for folder in folders}
        found += [
            f"{one}: {a} <> {b}"
            for a, b in combinations(folders, 2)
            if b in reached[a] and a in reached[b]
        ]
    return found


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for target in graph.get(todo.pop(), set()) - seen:
            seen.add(target)
            todo.append(target)
    return seen


def places_patched_twice() -> list[str]:
    """Return attributes of PyTorch and Python that more than one module replaces."""
    places: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        for node in ast.walk(tree_of(module)):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="replace", value=patches),
                    args=[ast.Name() | ast.Attribute() as owner, ast.Constant(str(name)), _],
                ) if ast.unparse(patches).endswith("patches"):
                    places[f"{ast.unparse(owner)}.{name}"].add(module)
    return sorted(f"{k}: {', '.join(sorted(v))}" for k, v in places.items() if len(v) > 1)


def crowded_classes() -> dict[str, int]:
    """Return the classes with too many attributes, inherited ones included, and their number."""
    found: dict[str, tuple[set[str], list[str]]] = {}
    for module in modules():
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
                found[node.name] = set(_attributes(node)), bases

    def attributes(name: str) -> set[str]:
        own, bases = found.get(name, (set(), []))
        return own.union(*(attributes(base) for base in bases if base != name))

    numbers = {name: len(attributes(name)) for name in found}
    return {name: n for name, n in sorted(numbers.items()) if n > MAX_ATTRIBUTES}


def _attributes(cls: ast.ClassDef) -> Iterator[str]:
    is_dataclass = any("dataclass" in ast.unparse(one) for one in cls.decorator_list)
    for node in ast.walk(cls):
        match node:
            case ast.AnnAssign(target=ast.Name(name), annotation=kind) if (
                is_dataclass and node in cls.body and "ClassVar" not in ast.unparse(kind)
            ):
                yield name
            case ast.Attribute(value=ast.Name("self"), attr=name, ctx=ast.Store()):
                yield name


def constants() -> dict[str, list[str]]:
    """Return the tuned numbers of each module: upper-case names of numbers other than 0 and 1."""
    found: dict[str, list[str]] = {}
    for module in modules():
        for node in ast.walk(tree_of(module)):
            bodies = [node.body] if isinstance(node, (ast.Module, ast.ClassDef)) else []
            for statement in (one for body in bodies for one in body):
                match statement:
                    case ast.Assign(targets=[target], value=value):
                        pass
                    case ast.AnnAssign(target=target, value=ast.expr() as value):
                        pass
                    case _:
                        continue
                numbers = _numbers(value)
                for name in ast.walk(target):
                    if isinstance(name, ast.Name) and name.id.isupper() and numbers:
                        found.setdefault(module, []).append(name.id)
    return found


def _numbers(value: ast.expr) -> list[float]:
    """Return the numbers of an expression made of nothing else, except 0 and 1."""
    numbers = []
    for node in ast.walk(value):
        match node:
            case ast.Constant(value=bool()):
                return []
            case ast.Constant(value=int() | float() as number):
                numbers.append(number)
            case ast.BinOp() | ast.UnaryOp() | ast.Tuple() | ast.operator() | ast.unaryop():
                pass
            case ast.expr_context():
                pass
            case _:
                return []
    return [number for number in numbers if number not in {0, 1}]


def private_names() -> dict[str, list[str]]:
    """Return the private names of torch and other packages that the code uses, with its modules.

    They may go with any release; ``make compat`` shows with which torch all of them are there.
    """
    ours, used = set[str](), defaultdict[str, set[str]](set)
    for module in modules():
        for node in ast.walk(tree_of(module)):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    ours.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    ours.add(name)
                case ast.Attribute(attr=name):
                    used[name].add(module)
                case ast.Call(
                    func=ast.Name("getattr" | "hasattr" | "setattr")
                    | ast.Attribute(attr="replace" | "wrap"),
                    args=[_, ast.Constant(str(name)), *_],
                ):
                    used[name].add(module)
        for source, name in imported_by(module):
            if source.split(".")[0] not in {"autotune", "__future__"}:
                used[name if _is_private(name) else source].add(module)
    return {
        name: sorted(used[name])
        for name in sorted(used)
        if any(map(_is_private, name.split("."))) and name not in ours
    }


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def lonely_modules() -> list[str]:
    """Return small modules with a single importer, entry points and families' members left out."""
    importers = Counter(target for targets in imports().values() for target in targets)
    return [
        name
        for name in modules()
        if importers[name] == 1
        and not modules()[name].name.startswith("__")
        and 0 < len(code_lines(text_of(name))) <= SMALL_CODE_LINES
    ]


def lines_per_room() -> dict[str, int]:
    """Return the lines of each room that has a weight, prose included."""
    lines: Counter[str] = Counter()
    for name in modules():
        lines[WEIGHED_WITH.get(room(name), room(name))] += len(text_of(name).splitlines())
    return dict(lines)


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


def number_of_code_lines() -> int:
    """Return the package's lines that hold code."""
    return sum(len(code_lines(text_of(name))) for name in modules())


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


def breaches() -> dict[str, dict[str, int]]:
    """Return for each law what breaks it, with a figure."""
    many = sum(map(len, constants().values()))
    per_1000 = 1000 * many / number_of_code_lines()
    long = len(chain(imports()))
    return {
        "one hub per place": dict.fromkeys(places_patched_twice(), 2),
        f"at most {MAX_ATTRIBUTES} attributes per class": crowded_classes(),
        f"at most {MAX_CHAIN} modules that import each other in a row": (
            {"modules": long} if long > MAX_CHAIN else {}
        ),
        "no cycles between sibling folders": dict.fromkeys(circles_of_folders(), 1),
        f"at most {MAX_CONSTANTS_PER_1000:g} tuned constants per 1,000 code lines": (
            {"constants": many} if per_1000 > MAX_CONSTANTS_PER_1000 else {}
        ),
        "no small modules with one importer": {
            name: len(code_lines(text_of(name))) for name in lonely_modules()
        },
        "lines per room": {
            one: n for one, n in sorted(lines_per_room().items()) if n > WEIGHTS[one]
        },
    }


def main() -> None:
    """Print the figures, then the laws with what breaks each."""
    per_1000 = 1000 * sum(map(len, constants().values())) / number_of_code_lines()
    figures = {
        "lines, files": f"{sum(lines_per_room().values())}, {len(modules())}",
        "fullest folders": ", ".join(f"{k} {n}" for k, n in files_per_folder().most_common(4)),
        "rooms, longest chain": " > ".join(chain(rooms())),
        "modules, longest chain": " > ".join(chain(imports())),
        "tuned constants per 1,000 lines": f"{per_1000:.1f}",
    }
    for name, text in figures.items():
        print(f"{name:32} {text}")
    for law, found in breaches().items():
        print(f"\n{law}: {len(found) or 'kept'}")
        for name, figure in found.items():
            of = f" of {WEIGHTS[name]}" if name in WEIGHTS else ""
            print(f"    {name} {figure}{of}")
    print("\nprivate names of torch and of other packages:")
    for name, where in private_names().items():
        print(f"    {name:32} {', '.join(where)}")


if __name__ == "__main__":
    main()
