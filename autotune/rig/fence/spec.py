"""What the parent tells the process that enters a fence, as one JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.rig.fence.plan import Cover, Step

EXERCISE = ".autotune-fence-probe"  # the file that a probe writes, renames and deletes


@dataclass(frozen=True)
class Covering:
    """One step with the folders that it needs.

    Attributes:
        step: What is covered, and how.
        scratch: A folder that holds ``upper`` and ``work`` of an overlay, or the rebuilt folder.
        layers: Folders that lie over the real one and below ``upper``, nearest to it first.
    """

    step: Step
    scratch: str = ""
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class FenceSpec:
    """How a process is fenced before it becomes another program.

    Attributes:
        coverings: In the order in which they are made; none leaves the mounts as they are.
        passed_through: Folders of autotune's own that stay real inside.
        in_user_namespace: The mounts need a user namespace: for everyone but root.
        writable: Landlock forbids to change files but below these; None forbids nothing.
        overlay_options: Appended to the mount options of each overlay.
        answer_file: Where the process says, as JSON, what kept it from entering.
        exercised: Folders in which a probe writes besides those that it covers.
        is_probe: Covers that fail are left out and told, and nothing is started.
    """

    coverings: tuple[Covering, ...] = ()
    passed_through: tuple[str, ...] = ()
    in_user_namespace: bool = False
    writable: tuple[str, ...] | None = None
    overlay_options: str = ""
    answer_file: str = ""
    exercised: tuple[str, ...] = ()
    is_probe: bool = False

    def write(self, path: Path) -> None:
        """Write it."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_spec(path: str) -> FenceSpec:
    """Return what ``write()`` wrote."""
    data: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    coverings = tuple(
        Covering(
            Step(Cover(c["step"]["cover"]), c["step"]["path"], tuple(c["step"]["attached"])),
            c["scratch"],
            tuple(c["layers"]),
        )
        for c in data.pop("coverings")
    )
    writable = data.pop("writable")
    return FenceSpec(
        coverings=coverings,
        passed_through=tuple(data.pop("passed_through")),
        exercised=tuple(data.pop("exercised")),
        writable=None if writable is None else tuple(writable),
        **data,
    )
