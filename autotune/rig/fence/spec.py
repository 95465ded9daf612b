"""FenceSpec: what the parent tells the process that enters a fence, as one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autotune.rig.fence.plan import Cover, Step

EXERCISE = ".autotune-fence-probe"  # name of the file that a probe writes, renames and deletes


@dataclass(frozen=True)
class Covering:
    """One step of the plan, with the scratch folders that it needs.

    Attributes:
        scratch: Folder with ``upper`` and ``work`` of an overlay, or with ``rebuilt`` and
            ``original`` of any other cover. Empty for ``READ_ONLY``.
        layers: Layers of kept caches between the real folder and ``upper``, uppermost first.
    """

    step: Step
    scratch: str = ""
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class FenceSpec:
    """How a process fences itself before it executes the program.

    Attributes:
        passed_through: Folders that stay real behind the fence.
        in_user_namespace: Whether mounting needs a user namespace, as for everyone but root.
        writable: Paths outside of which Landlock denies writes; None does without Landlock.
        exercised: Folders in which a probe tries to write, in addition to the covered ones.
        env: Variables of the command alone: one such as ``LD_PRELOAD`` would run code in the
            process that enters the fence, before it is behind it.
    """

    coverings: tuple[Covering, ...] = ()
    passed_through: tuple[str, ...] = ()
    in_user_namespace: bool = False
    writable: tuple[str, ...] | None = None
    overlay_options: str = ""
    answer_file: str = ""
    exercised: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the spec as JSON, for ``read_spec()``."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_spec(path: str) -> FenceSpec:
    """Return the spec that ``FenceSpec.write()`` wrote to a file."""
    data: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    coverings = tuple(
        Covering(Step(Cover(step["cover"]), step["path"], tuple(step["attached"])), scratch, layers)
        for step, scratch, layers in (covering.values() for covering in data.pop("coverings"))
    )
    return FenceSpec(coverings=coverings, **data)
