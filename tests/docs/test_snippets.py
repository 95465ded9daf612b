"""Every other block of README and docs: Python is executed, YAML and TOML read, text compared."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.knobs import Here, Knob
from autotune.knobs.space import spacefile
from autotune.knobs.strategies import Strategy
from autotune.results import bestfile
from tests.docs import recording
from tests.docs.pages import ROOT, Block, blocks, blocks_in
from tests.docs.project import CUSTOM_KNOB, SLOW, TRAINED, records_in_memory, scripted
from tests.docs.test_commands import made, project
from tests.made import MACHINES, make_profile

__all__ = ["made", "project"]

RUN = {"console", "python", "yaml", "toml", "text"}


def by_place(block: Block) -> str:
    return block.place


def test_each_block_is_of_a_kind_that_a_test_runs() -> None:
    unknown = [block.place for block in blocks() if block.language not in RUN]
    assert not unknown, "say how a test runs such blocks"


FIRST_LINES = [block for block in blocks_in("python") if "autotune.apply(" in block.text]
OTHERS = [block for block in blocks_in("python") if block not in FIRST_LINES]


@pytest.mark.parametrize("block", OTHERS, ids=by_place)
def test_python_is_executed(block: Block, project: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    with scripted(SLOW), records_in_memory():
        exec(compile(block.text, block.place, "exec"), names)
    for name, value in names.items():
        if isinstance(value, type) and value.__module__ == "__main__":
            keeps_its_contract(value, name)


@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("block", FIRST_LINES, ids=by_place)
def test_a_program_with_these_lines_trains_with_the_config(block: Block, project: Path) -> None:
    script = project / "applied.py"
    script.write_text(block.text + (project / "train.py").read_text())
    done = subprocess.run(
        [sys.executable, str(script)], cwd=project, check=True, capture_output=True, text=True
    )
    assert done.stdout == TRAINED


def keeps_its_contract(made_by_block: type, name: str) -> None:
    """Check a knob or a strategy for each machine, as the contract tests do."""
    one = made_by_block()
    assert isinstance(one, Knob | Strategy), name
    for hardware in MACHINES.values():
        here = Here(hardware, make_profile())
        if isinstance(one, Strategy):
            reason = one.refusal(here)
            assert reason is None or reason[0].islower()
        else:
            assert one.summary.endswith(".")
            assert one.current(here.profile) in one.domain(here).values  # type: ignore[union-attr]


WORKFLOWS = [block for block in blocks_in("yaml") if "jobs:" in block.text]
FILES = [block for block in blocks_in("yaml") if block not in WORKFLOWS]


@pytest.mark.parametrize("block", WORKFLOWS, ids=by_place)
def test_a_workflow_gives_the_action_what_it_takes(block: Block) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    jobs = yaml.safe_load(block.text)["jobs"].values()
    (step,) = (s for job in jobs for s in job["steps"] if "autotune@" in s.get("uses", ""))
    needed = {name for name, one in action["inputs"].items() if one.get("required")}
    assert needed <= step["with"].keys() <= action["inputs"].keys()


@pytest.mark.parametrize("block", FILES, ids=by_place)
def test_yaml_is_a_search_space_or_a_best_file(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(block.text, encoding="utf-8")
    if "made_on:" in block.text:
        written = bestfile.read(path).text()
        assert written.splitlines()[1:] == block.text.splitlines()[1:], "the first has its name"
    else:
        assert spacefile.load(str(path)).knobs


@pytest.mark.parametrize("block", blocks_in("toml"), ids=by_place)
def test_toml_is_what_the_example_has(block: Block) -> None:
    example = tomllib.loads((CUSTOM_KNOB / "pyproject.toml").read_text(encoding="utf-8"))
    for table, content in tomllib.loads(block.text).items():
        assert content.items() <= example[table].items(), block.place


@pytest.mark.parametrize("block", blocks_in("text"), ids=by_place)
def test_output_is_recorded(block: Block) -> None:
    pages = (*recording.VERDICTS, recording.EXAMINED)
    assert block.text in {recording.text_in(page)[1] for page in pages}, block.place
