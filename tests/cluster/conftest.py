"""Searches of several machines on real parts: `make cluster` runs these tests, nothing else does.

They are skipped only where a package or a namespace is refused. Each test makes its own machines
and servers, so that several may run at once. What a test found is told in a table at the end.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FOUND = "AUTOTUNE_CLUSTER_FOUND"  # the folder in which tests leave the rows of the last table
Row = dict[str, object]
Tell = Callable[[Row], None]


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that prints; the others inherit it
        os.environ[FOUND] = os.environ["TMPDIR"] + "/found"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.cluster)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests found, a row each."""
    rows: list[Row] = [
        json.loads(path.read_text()) for path in sorted(Path(os.environ[FOUND]).glob("*.json"))
    ]
    if not rows:
        return
    terminalreporter.section("what was found")
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        terminalreporter.write_line("  ".join(cells).rstrip())


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Keep a row of the table that is printed when all tests are over."""
    folder = Path(os.environ[FOUND])

    def keep(row: Row) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("*")))
        name = f"{request.node.name}-{number}-{os.getpid()}.json".replace("/", "-")
        folder.joinpath(name).write_text(json.dumps(row))

    return keep


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that any user may enter: the server is no process of ours."""
    with tempfile.TemporaryDirectory(prefix="cluster-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
