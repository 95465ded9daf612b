"""The picture of a search's page in the guide, with the id of that search kept inside."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.docs.pages import ROOT

PICTURE = ROOT / "docs" / "images" / "report.png"
ID = "search"  # the key of the id
WIDTH, HEIGHT = 900, 1720


def search_id() -> str:
    """Return the id of the search in the picture."""
    with Image.open(PICTURE) as image:
        return str(image.info[ID])


def take(page: Path, named: str) -> None:
    """Take the picture of the page of the search with this id."""
    told = PngInfo()
    told.add_itxt(ID, named)
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder, "taken.png")
        look = [
            shutil.which("chromium") or "chromium", "--headless=new", "--no-sandbox",
            "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile",
            f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={taken}", page.resolve().as_uri(),
        ]  # fmt: skip
        subprocess.run(look, stderr=subprocess.DEVNULL, check=True)
        with Image.open(taken) as image:
            image.convert("RGB").save(PICTURE, pnginfo=told, optimize=True)
