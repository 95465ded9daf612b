"""Takes the picture of a report for README and guide: ``python -m tests.docs.picture RUN``.

*RUN* is the folder of a search, such as ``.autotune/train``. The picture shows the top of its page.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from tests.docs.pages import ROOT

PICTURE = ROOT / "docs" / "images" / "report.png"
COLOURS = 160  # of drawings with text; more make the file larger than 150 KB
SIZE = (900, 1840)  # as wide as the text of the page, down to the charts


def main() -> None:
    """Show the page in chromium, and keep what is seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    page = parser.parse_args().run.resolve() / "report.html"
    chromium = shutil.which("chromium") or parser.error("chromium is not installed")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-dev-shm-usage", f"--user-data-dir={profile}",
             f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={PICTURE}", page.as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip
    with Image.open(PICTURE) as seen:
        seen.convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
