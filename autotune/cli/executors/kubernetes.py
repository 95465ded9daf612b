"""``kubernetes``: the line as an Indexed Job with a PostgreSQL server, printed as a manifest.

autotune never talks to a cluster: the manifest goes to stdout, for ``kubectl apply -f -``. Its
passwords are references to a secret that the user makes; the manifest holds none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from autotune.cli.executors.base import Executor, OptionParser, Submission

TEMPLATE = Path(__file__).with_suffix(".yaml.jinja")


class Kubernetes(Executor):
    """Renders a manifest and starts nothing."""

    name: ClassVar[str] = "kubernetes"
    usage: ClassVar[str] = "'kubernetes --image=IMAGE --cpus=8 --gpus=1 --memory=32Gi'"

    def __init__(self, options: str) -> None:
        """Take the image of the training, and what each worker asks its node for."""
        parser = OptionParser(Kubernetes)
        parser.add_argument("--image", required=True)
        parser.add_argument("--cpus", type=int, required=True)
        parser.add_argument("--gpus", type=int, default=0)
        parser.add_argument("--memory")
        self._wanted = parser.parse_args(parser.words(options))

    def submit(self, line: Sequence[str], count: int) -> Submission:
        from jinja2 import Template

        wanted = self._wanted
        room = {"cpu": str(wanted.cpus), "memory": wanted.memory}
        room["nvidia.com/gpu"] = str(wanted.gpus) if wanted.gpus else None
        values = {
            "image": wanted.image,
            "line": [*line],
            "room": {name: value for name, value in room.items() if value},
        }
        as_yaml = {name: json.dumps(value) for name, value in values.items()}
        text = TEMPLATE.read_text(encoding="utf-8")
        manifest = Template(text, keep_trailing_newline=True).render(count=count, **as_yaml)
        return Submission(manifest=manifest)

    def unfinished(self) -> None:
        return None
