"""Jupyter: a search shows one table while it runs, and its result is shown as a card."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from autotune.integrations.notebook import events_here, live_table
from autotune.integrations.progress import Best, SearchProgress
from nbclient import NotebookClient

from autotune.tuning.budget import Budget
from autotune.tuning.events import Events
from tests.report.test_report import HOSTILE, text_of

ROOT = Path(__file__).parents[2]
# A whole search in virtual time, shown as autotune.search() shows one
SCRIPTED = """
from pathlib import Path
from autotune.integrations.notebook import events_here
from autotune.report import ShownResult
from tests.scripted import Script, begin

knobs = {"workers": (0, 1, 2), "batch_size": (64, 128)}
searched = begin(Path("."), Script({"workers": {1: 1.5}}), knobs)
result = ShownResult.of(searched.go_on(180.0, events_here()))
"""
# A real one, which ends when the program has started
REAL = """
import autotune
from autotune.errors import BudgetError

def train():
    import torch
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()

try:
    autotune.search(train, budget=3, name="notebook")
except BudgetError as error:
    print("ended:", error)
"""
CELLS = (REAL, SCRIPTED, "result")


class Client(NotebookClient):
    """Runs a notebook, and keeps each table that was shown, not only the last one of a cell."""

    shown: list[tuple[int, str]]

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if html := msg["content"].get("data", {}).get("text/html"):
            self.shown.append((cell_index, html))
        return super().process_message(msg, cell, cell_index)


@pytest.mark.slow
def test_a_notebook_shows_the_search_while_it_runs_and_then_its_result(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(workplace / name.lower()))
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, CELLS)])
    client = Client(notebook, timeout=120, kernel_name="python3")
    client.shown = []
    client.execute()
    real, searched, result = (_html_of(cell) for cell in notebook.cells)

    assert len(searched) == 1, "one display is replaced again and again"
    assert "autotune ended after" in text_of(searched[0])
    shown = [text_of(html) for cell, html in client.shown if cell == 1]
    said = " / ".join(shown)
    phases = ("starting", "baseline", "searching", "rehearsing", "confirming", "ended")
    places = [said.index(f"autotune {phase}") for phase in phases]
    assert places == sorted(places)
    assert re.search(r"baseline \dm \d\ds left", said)
    assert re.search(r"now workers=1.* why \w+", said)
    assert "now configs take turns" in said
    assert re.search(r"best about 1\.\d+x workers=1", shown[-1])

    (card,) = result
    for words in ("x faster", "confirmed in fresh processes", "samples/s", "workers 0 → 1"):
        assert words in text_of(card)
    assert "autotune run .autotune/train/best.yaml" in text_of(card)

    assert len(real) == 1, "autotune.search() follows the search without being told to"
    assert "autotune ended after" in text_of(real[0])
    (printed,) = (o.text for o in notebook.cells[0].outputs if o.output_type == "stream")
    assert printed.startswith("ended: A budget of 3 s is too short")


def _html_of(cell: Any) -> list[str]:
    found = [output.get("data", {}).get("text/html") for output in cell.outputs]
    return [html for html in found if html]


def test_outside_of_a_notebook_nothing_is_shown_and_ipython_is_not_imported() -> None:
    code = (
        "import sys; from autotune.integrations.notebook import events_here; import autotune.api; "
        "print(type(events_here()), 'IPython' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == f"{Events} False\n"
    import IPython

    assert IPython.get_ipython() is None
    assert type(events_here()) is Events, "IPython is imported, but this is not a kernel"


def test_whatever_a_config_is_called_is_text_in_the_table() -> None:
    best = Best(1.2, HOSTILE)
    progress = SearchProgress(Budget(180.0), config=HOSTILE, why=HOSTILE, best=best)
    html = live_table(progress, [HOSTILE])
    assert text_of(html).count("alert('x')") == 4
    assert "<script" not in html
    assert "<b>" not in html
