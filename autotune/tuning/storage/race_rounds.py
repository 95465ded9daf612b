"""Rounds of a race: this machine's, and those of other machines that share the study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autotune.measurement.rounds import Speeds, speeds
from autotune.measurement.turn import Played
from autotune.program.config import Config
from autotune.results.record import PlayedRounds


class RaceRounds:
    """What was played in a race.

    Attributes:
        own: All rounds of this machine, of all sessions, in order.
    """

    def __init__(self, own: Iterable[PlayedRounds]) -> None:
        self.own = [*own]
        self._elsewhere: Mapping[str, Sequence[PlayedRounds]] = {}
        self._speeds: Speeds | None = None

    def add(self, played: PlayedRounds) -> None:
        """Add rounds of this machine."""
        self.own.append(played)
        self._speeds = None

    def hear(self, elsewhere: Mapping[str, Sequence[PlayedRounds]]) -> None:
        """Take the rounds of other machines, by machine: all that are known."""
        if sum(map(len, elsewhere.values())) != sum(map(len, self._elsewhere.values())):
            self._elsewhere = {name: tuple(rounds) for name, rounds in elsewhere.items()}
            self._speeds = None

    @property
    def speeds(self) -> Speeds | None:
        """What all rounds say about configs; None before the first with two configs.

        Those of one answer of a rig, of about two seconds, count as one round: what the machine
        does to a config's ratio lasts longer than a turn. A config that only other machines have
        played is compared by the program as written, which all of them play.
        """
        machines = [rounds for rounds in (self.own, *self._elsewhere.values()) if rounds]
        if self._speeds is None and machines:
            by_process = [[*_by_process(rounds)] for rounds in machines]
            self._speeds = speeds(by_process, machines[0][0].configs[0])
        return self._speeds


def _by_process(rounds: Iterable[PlayedRounds]) -> Iterable[list[Mapping[Config, Played]]]:
    processes: dict[int, list[Mapping[Config, Played]]] = {}
    for one in rounds:
        processes.setdefault(one.process, []).append(one.stretch)
    return processes.values()
