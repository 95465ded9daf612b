"""``autotune search --dry-run``: one start as written, and what a search then tries."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.knobs.space.space import ResolvedSpace
from autotune.knobs.space.spacefile import load
from autotune.program.flags import Flag
from autotune.tuning import outlook
from autotune.tuning.budget import Reach
from autotune.tuning.choosing.diagnosis import Diagnosis
from autotune.tuning.events import Events
from tests.docs.project import SLOW, scripted
from tests.made import A100, GIB, make_profile
from tests.rigging import PROGRAMS
from tests.scripted import Script, begin

SCRIPTS = {
    "cpu": Script(),
    "page faults": Script(faults=(900, 900), fault_s=1e-4),
    "gpu": Script(
        profile=make_profile(device="cuda"),
        gpus=(replace(A100, usable_bytes=30 * GIB),),
        device_bytes=lambda _: GIB,
    ),
    "no loader": Script(profile=make_profile(loaders=())),
    "flags": Script(profile=make_profile(flags=(Flag("--hidden", value=64, takes="int"),))),
}


class Tuned(Events):
    """Keeps the space that a search tries."""

    space: ResolvedSpace | None = None

    def on_diagnosis(self, _diagnosis: Diagnosis, space: ResolvedSpace, _held: Reach) -> None:
        self.space = space


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_one_start_shows_the_settings_that_the_search_then_tries(
    script: Script, tmp_path: Path
) -> None:
    spaces = []
    for name in ("looked at", "searched"):
        folder = tmp_path / name
        folder.mkdir()
        one, tuned = begin(folder, script, load("default")), Tuned()
        if name == "searched":
            one.go_on(180.0, tuned)
            assert tuned.space is not None
            spaces.append(tuned.space)
            continue
        study = one.study
        study.take_lease(force=True)
        found = outlook.outlook(one.run, study, tuned, one.machine.surroundings)
        assert tuned.space is None
        assert [question.rig for question in one.machine.asked if question.kind == "open"] == [1]
        spaces.append(found.space)
    assert spaces[0].domains == spaces[1].domains
    assert spaces[0].refused == spaces[1].refused


def test_it_says_what_is_tried_what_is_not_and_what_the_budget_holds(workplace: Path) -> None:
    (workplace / "train.py").touch()
    before = sorted(workplace.rglob("*"))
    line = ["search", "--dry-run", "--set", "precision=bf16", "--budget", "3m"]
    with scripted(SLOW):
        said = CliRunner().invoke(app, [*line, "train.py"])
        data = json.loads(CliRunner().invoke(app, [*line, "--json", "-q", "train.py"]).stdout)
    assert said.exit_code == 0, said.output
    assert sorted(workplace.rglob("*")) == before, "nothing is written"
    for setting in data["settings"]:
        (shown,) = [
            row for row in said.stdout.splitlines() if row.startswith(f"{setting['setting']} ")
        ]
        values = [setting["now"], *", ".join(setting["values"]).split()]
        late = data["needs_budget_s"].get(setting["setting"])
        assert shown.split()[1 : 1 + len(values)] == values
        assert ("only with --budget" in shown) is (late is not None)
    assert data["held"] == {"precision": "bf16"}
    assert data["settings"]
    assert data["budget_s"] == 180
    for text in (
        *data["not_tried"].values(),
        data["fence"],
        "--hidden",
        "a whole number",
        "take 3m,",
    ):
        assert text in " ".join(said.stdout.split())
    for what, seconds in data["needs_budget_s"].items():
        assert seconds > 180, what


@pytest.mark.usefixtures("warm_starts")
def test_a_real_program_is_asked_by_running_its_first_steps(workplace: Path) -> None:
    told = CliRunner().invoke(app, ["search", "--dry-run", str(PROGRAMS / "plain.py"), "/dev/null"])
    assert told.exit_code == 0, told.output
    assert "batch_size" in told.output
    assert "the model has no 2-D convolution" in told.output
    assert not (workplace / ".autotune").exists()
