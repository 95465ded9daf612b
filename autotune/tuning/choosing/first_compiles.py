"""First compiles: which machine of several is the first to compile the program in a mode.

Compiling takes longest of all that takes turns, and fails most. So one machine tries a mode, while
the others try something else. They follow once its rounds say that it may be the best.
"""

from __future__ import annotations

from collections.abc import Iterable

from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import Config, KnobValue
from autotune.results.record import TrialRecord
from autotune.tuning.storage.study import Study


class FirstCompiles:
    """Asks for the right to compile in a mode, where that is to be searched."""

    def __init__(self, study: Study, space: ResolvedSpace) -> None:
        self._study, self._space = study, space
        self._held: dict[Config, Config] = {}  # what is tried first here: by config, its arm
        self._left: set[KnobValue] = set()

    def may_try(self, config: Config) -> bool:
        """Return whether a config may be tried now, after asking for the right where need be."""
        sharing, mode = self._study.sharing, config.get("compile", "off")
        is_shared_out = not sharing.is_alone and "compile" in self._space.domains
        arm = self._space.start.replace(compile=mode)
        is_known = mode in self._modes() or arm in self._held.values()
        if mode == "off" or not is_shared_out or is_known:
            return True
        if not sharing.may_try(arm):
            self._left.add(mode)
            return False
        self._held[config] = arm
        return True

    def ask_again(self) -> bool:
        """Have others' modes asked for again, as these may be lost; return whether some are theirs.

        Until they have been played, the race is not over.
        """
        awaits, self._left = bool(self._left - self._modes()), set()
        return awaits

    def is_left_to_others(self, config: Config) -> bool:
        """Return whether another machine tries a config's mode, and has not played it yet."""
        mode = config.get("compile", "off")
        return mode in self._left and mode not in self._modes()

    def tell(self, record: TrialRecord) -> None:
        """Share how the first compile ended, if it was this machine's."""
        if (arm := self._held.pop(record.config, None)) is not None:
            self._study.sharing.tried(record, arm)

    def _modes(self) -> set[KnobValue]:
        """Return the modes in which configs have played, on any machine."""
        speeds = self._study.speeds
        played: Iterable[object] = () if speeds is None else speeds.configs
        return {c.get("compile", "off") for c in played if isinstance(c, Config)}
