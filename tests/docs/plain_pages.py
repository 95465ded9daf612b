"""A hook of mkdocs: the site holds ``llms.txt`` as well, and the plain files that it links to.

Agents read Markdown and JSON rather than a page of HTML. mkdocs loads this file by its path, so it
imports nothing of the repository.
"""

import re
import shutil
from pathlib import Path
from typing import Any

LINK = re.compile(r"\]\(([^)]+)\)")


def on_post_build(config: Any) -> None:
    """Copy them into the site; a page of ``docs/`` comes to lie beside its HTML."""
    root, site = Path(config["config_file_path"]).parent, Path(config["site_dir"])
    text = (root / "llms.txt").read_text(encoding="utf-8")
    for target in LINK.findall(text):
        copied = site / target.removeprefix("docs/")
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / target, copied)
    (site / "llms.txt").write_text(text.replace("](docs/", "]("), encoding="utf-8")
