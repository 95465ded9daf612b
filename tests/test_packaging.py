import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_built_wheel_gives_a_working_command_with_the_shipped_spaces(tmp_path: Path) -> None:
    """The wheel is installed alone; what it depends on comes from the environment of the tests."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("autotune_torch-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    spaces = [n for n in names if n.startswith("autotune/search_spaces/")]
    shipped = ["cpu", "default", "devices", "full", "memory", "quick"]
    assert sorted(Path(n).stem for n in spaces) == shipped
    assert not [n for n in names if n.startswith(("tests", "examples", "benchmarks"))]
    for data in ("cli/SKILL.md", "report/templates/page.css", "exports/templates/hf.yaml"):
        assert f"autotune/{data}" in " ".join(names), data
    home = tmp_path / "env"
    venv.create(home, with_pip=False)
    site = next(home.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (site / "rest.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    code = (
        "import autotune, autotune.knobs.space.spacefile as s; "
        "print(autotune.__file__, s.load('default').name, s.shipped_names())"
    )
    said = subprocess.run(
        [home / "bin" / "python", "-c", code],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    ).stdout  # fmt: skip
    assert str(site) in said
    assert f"default {shipped}" in said
