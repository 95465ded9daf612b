"""What the parent tells the process that enters a fence, and what that answers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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
    exercised: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Door:
    """A file in memory through which a fence's spec goes in and the answer comes out.

    It has no name and the program does not inherit it, so nothing that a program writes is ever
    taken for the answer.
    """

    number: int

    @classmethod
    def to(cls, spec: FenceSpec) -> Door:
        """Return one that holds a spec; the caller closes it."""
        door = cls(os.memfd_create("autotune-fence"))
        door._write(asdict(spec))
        return door

    def spec(self) -> FenceSpec:
        """Return the spec, and have the program that is executed later not inherit this file."""
        os.set_inheritable(self.number, False)  # noqa: FBT003 - the library's own
        return _spec(self._read())

    def answer(self, **said: object) -> None:
        """Replace the spec by an answer."""
        self._write(said)

    def said(self, word: str) -> Any:
        """Return a word of the answer; None if it has none, or the fence was not entered yet."""
        return self._read().get(word)

    def close(self) -> None:
        """Close this process's side."""
        os.close(self.number)

    def _write(self, data: Mapping[str, object]) -> None:
        os.truncate(self.number, 0)
        os.pwrite(self.number, json.dumps(data).encode(), 0)

    def _read(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(os.pread(self.number, os.fstat(self.number).st_size, 0))
        return data


def _spec(data: dict[str, Any]) -> FenceSpec:
    coverings = tuple(
        Covering(Step(Cover(step["cover"]), step["path"], tuple(step["attached"])), scratch, layers)
        for step, scratch, layers in (covering.values() for covering in data.pop("coverings"))
    )
    return FenceSpec(coverings=coverings, **data)
