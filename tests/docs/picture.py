"""The picture in the guide: the page of a run, with what that run prints kept inside.

``python -m tests.docs.picture .autotune/train`` makes it of a run.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.docs.pages import ROOT

PICTURE = ROOT / "docs" / "images" / "report.png"
PRINTED = "printed"  # the key of its text
WIDTH, HEIGHT = 900, 1720


def printed() -> str:
    """Return what the run in the picture prints."""
    with Image.open(PICTURE) as image:
        return str(image.info[PRINTED])


def main(run: str) -> None:
    """Take the picture of a run's page."""
    show = [sys.executable, "-m", "autotune", "show", run]
    told = PngInfo()
    told.add_itxt(PRINTED, subprocess.run(show, stdout=-1, text=True, check=True).stdout)
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder, "taken.png")
        look = [
            shutil.which("chromium") or "chromium", "--headless=new", "--no-sandbox",
            "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile",
            f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={taken}",
            (Path(run) / "report.html").resolve().as_uri(),
        ]  # fmt: skip
        subprocess.run(look, stderr=subprocess.DEVNULL, check=True)
        with Image.open(taken) as image:
            image.convert("RGB").save(PICTURE, pnginfo=told, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
