"""The picture of a search's page in the guide, with the id of that search kept inside."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image, ImageChops
from PIL.PngImagePlugin import PngInfo

from tests.docs.pages import ROOT

PICTURE = ROOT / "docs" / "images" / "report.png"
ID = "search"  # the key of the id
WIDTH, HEIGHT = 900, 1720  # pixels; a longer page is cut
MARGIN = 24
COLOURS = 96


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
            page_only = image.convert("RGB").crop((0, 0, WIDTH, _bottom(image)))
            few = page_only.quantize(COLOURS)  # a third of the bytes
            few.save(PICTURE, pnginfo=told, optimize=True)


def _bottom(image: Image.Image) -> int:
    """Return where the page ends, with a margin; where it is longer than the picture, its end."""
    light = image.convert("RGB")
    blank = Image.new("RGB", light.size, light.getpixel((0, 0)))
    box = ImageChops.difference(light, blank).getbbox()
    return min(HEIGHT, box[3] + MARGIN) if box else HEIGHT
