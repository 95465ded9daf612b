import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli import knob_sheet
from autotune.cli.app import app
from autotune.knobs import registry
from autotune.machine.hardware import Hardware
from tests.made import MACHINES, make_profile
from tests.rigging import PROGRAMS

pytestmark = pytest.mark.usefixtures("warm_starts")

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("hardware", MACHINES.values(), ids=MACHINES)
def test_every_knob_has_a_row_with_values_or_a_reason(hardware: Hardware) -> None:
    rows = knob_sheet.rows(hardware, make_profile(device="cuda" if hardware.gpus else "cpu"))
    assert [row.knob for row in rows] == list(registry())
    for row in rows:
        assert bool(row.values) != bool(row.reason), row
        assert not row.values or row.now in row.values


def test_the_readmes_table_is_the_registrys() -> None:
    shown = [(name, knob) for name, knob in registry().items() if not knob.is_hidden]
    lines = [f"| `{name}` | {knob.scope} | {knob.summary} |" for name, knob in shown]
    assert "\n".join(lines) in README.read_text(encoding="utf-8")


def test_a_program_is_asked_by_running_its_first_steps() -> None:
    told = CliRunner().invoke(app, ["knobs", str(PROGRAMS / "plain.py"), "/dev/null"])
    assert told.exit_code == 0, told.output
    assert "batch_size" in told.output
    assert "32, 64" in told.output
    assert "the model has no 2-D convolution" in told.output


def test_the_json_says_what_the_table_says() -> None:
    table = knob_sheet.rows(MACHINES["two cores"], make_profile(threads=1))
    (threads,) = (row for row in table if row.knob == "threads")
    assert (threads.now, threads.values) == ("1", ("1", "2")), "its present value is the program's"
    found = json.loads(knob_sheet.as_json(table, "train.py"))
    assert " ".join(found) == "about knobs flags"
    keys = {" ".join(row) for row in found["knobs"]}
    assert keys == {"knob changes now values reason is_hidden"}
    assert CliRunner().invoke(app, ["knobs", "--json"]).exit_code == 2
