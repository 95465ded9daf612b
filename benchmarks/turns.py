"""How long should a turn be? Configs take turns of several lengths, in a live rig.

    python -m benchmarks.turns                 all settings, 25 minutes; nothing else may run
    python -m benchmarks.turns precision       one of them

For each setting two configs take turns, with and without it, in stretches of all lengths that
follow each other in random order, so that each length meets the same moods of the machine. Told
are, by length: the ratio of speeds with its error (jackknife over rounds), and what it differs by
from stays of 4 s. From turns of three steps: how much longer the first step after a switch to the
change takes than the second.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from time import monotonic
from typing import Any

from autotune.measurement.interval import LogRatio
from autotune.measurement.outcome import Ending
from autotune.measurement.rounds import speeds
from autotune.measurement.turn import PlannedTurn, Played, Turn
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import KnobValue
from autotune.program.fence_options import FenceOptions
from autotune.rig.fence import raise_fence
from autotune.rig.rig import Rig
from benchmarks import record
from tests.rigging import applied_with, open_rig

EXAMPLES = Path(__file__).parents[1] / "examples"
DIGITS = ("digits_cnn/train.py",)
PHOTOS = ("photos_resnet/train.py",)
CHARS = ("char_gpt/train.py", "--steps", "10000000")  # it has no loader that could begin anew
STEPS = (1, 2, 3)  # lengths in steps
SECONDS = (0.03, 0.1, 0.25, 1.0)  # and in time
STRETCH_S, STRETCHES = 5.0, 4
STAY_S, STAYS = 4.0, 5
SILENCE_S = 120.0


@dataclass(frozen=True)
class Setting:
    """A change whose worth is measured by turns.

    Attributes:
        line: The example, with its arguments.
        changes: What one of the two configs has on top of *shared*.
        shared: What both have.
    """

    line: tuple[str, ...]
    changes: Mapping[str, KnobValue]
    shared: Mapping[str, KnobValue]


SETTINGS = {
    "precision": Setting(DIGITS, {"precision": "bf16"}, {}),
    "channels_last": Setting(PHOTOS, {"memory_format": "channels_last"}, {"precision": "bf16"}),
    "optimizer": Setting(CHARS, {"optimizer": "fused"}, {}),
    "threads": Setting(CHARS, {"threads": 1}, {}),
    "batch": Setting(DIGITS, {"batch_size": 128}, {}),
    "workers": Setting(DIGITS, {"workers": 1, "threads": 1}, {"threads": 1}),
    "compile": Setting(CHARS, {"compile": "default"}, {}),
}
Round = Sequence[Turn]


class Pair:
    """Two configs that take turns in one rig.

    Attributes:
        usual_s: Median seconds of a step, by config, in the last rounds.
    """

    def __init__(self, rig: Rig, configs: Sequence[AppliedConfig]) -> None:
        self._rig, self._configs = rig, configs
        self.usual_s = [0.1, 0.1]

    def play(self, lengths: Sequence[int], rounds: int) -> list[Round]:
        """Return rounds in which each config takes one turn, in random order."""
        order = [n for _ in range(rounds) for n in random.sample((0, 1), 2)]
        schedule = [PlannedTurn(n, lengths[n]) for n in order]
        taken = self._rig.take_turns(self._configs, schedule, lambda: None, SILENCE_S)
        if isinstance(taken, Ending):
            raise SystemExit(f"the program ended: {taken}")
        for n in (0, 1):
            seconds = [s for turn in taken.turns if turn.config == n for s in turn.seconds]
            self.usual_s[n] = median(seconds) if seconds else self.usual_s[n]
        return [taken.turns[at : at + 2] for at in range(0, len(taken.turns) - 1, 2)]

    def steps_in(self, seconds: float) -> list[int]:
        """Return the whole steps of each config that make a turn of this length."""
        return [max(1, math.ceil(seconds / usual)) for usual in self.usual_s]

    def stretch(self, lengths: Sequence[int], seconds: float) -> list[Round]:
        """Return as many rounds as fill the seconds."""
        until, found = monotonic() + seconds, list[Round]()
        while monotonic() < until:
            round_s = sum(n * s for n, s in zip(lengths, self.usual_s, strict=True))
            count = max(1, min(50, int((until - monotonic()) / round_s)))
            found += self.play(lengths, count)
        return found


def measure(name: str, setting: Setting) -> dict[str, Any]:
    """Return the figures of one setting."""
    script, *arguments = setting.line
    with (
        tempfile.TemporaryDirectory(prefix="turns-") as folder,
        raise_fence(FenceOptions(), Path(folder)) as behind,
        open_rig(Path(folder), str(EXAMPLES / script), *arguments, behind=behind) as opened,
    ):
        shared = applied_with(opened.base, **setting.shared)
        pair = Pair(opened.rig, [applied_with(shared, **setting.changes), shared])
        pair.stretch([3, 3], 10.0)  # until the first steps are over
        lengths = {f"{n} steps": [n, n] for n in STEPS}
        lengths |= {f"{s:g} s": pair.steps_in(s) for s in SECONDS}
        rounds: dict[str, list[Round]] = {label: [] for label in lengths}
        stays: list[Round] = []
        for _ in range(STRETCHES):
            for label in random.sample(sorted(lengths), len(lengths)):
                rounds[label] += pair.stretch(lengths[label], STRETCH_S)
            stays += pair.stretch(pair.steps_in(STAY_S), 2 * STAY_S * STAYS / STRETCHES)
        truth = ratio(stays)
        figures: dict[str, Any] = {
            "program": " ".join(setting.line),
            "step_ms": [round(1e3 * s, 2) for s in pair.usual_s],
            "stays": told(truth),
            "lengths": {label: of_length(found, truth) for label, found in rounds.items()},
            "first_step": excess(rounds["3 steps"]),
            "switch_ms": round(1e3 * median(t.switch_s for r in rounds["1 steps"] for t in r), 3),
        }
    show(name, figures)
    return figures


def ratio(rounds: Sequence[Round]) -> LogRatio:
    """Return how much faster config 0 is than config 1; steps that were disturbed do not count."""
    played = [{turn.config: counted(turn) for turn in turns} for turns in rounds]
    whole = [one for one in played if one[0].work and one[1].work]
    found = speeds([[whole]], first=1)
    return LogRatio(math.nan, math.nan) if found is None else found.of(0)


def counted(turn: Turn) -> Played:
    """Return a turn without the steps that were disturbed."""
    steps = [n for n in range(len(turn.seconds)) if n not in turn.disturbed]
    return Played(sum(turn.seconds[n] for n in steps), sum(turn.samples[n] for n in steps))


def of_length(rounds: Sequence[Round], truth: LogRatio) -> dict[str, float]:
    """Return what turns of one length tell."""
    found = ratio(rounds)
    return {**told(found), "bias_pct": percent(found.value - truth.value), "rounds": len(rounds)}


def excess(rounds: Sequence[Round]) -> dict[str, float]:
    """Return by how much config 0's first step after a switch is longer than the second."""
    logs = [
        math.log(turn.seconds[0] / turn.seconds[1])
        for turns in rounds
        for turn in turns
        if not any(turn.disturbed for turn in turns) and turn.config == 0 and len(turn.seconds) > 1
    ]
    return {"pct": percent(fmean(logs)), "error_pct": percent(stdev(logs) / math.sqrt(len(logs)))}


def told(log: LogRatio) -> dict[str, float]:
    """Return a ratio as it is kept."""
    return {"ratio": round(math.exp(log.value), 4), "error_pct": percent(log.error)}


def percent(value: float) -> float:
    """Return a number in percent, rounded."""
    return round(100 * value, 2)


def show(name: str, figures: Mapping[str, Any]) -> None:
    """Print the figures of one setting."""
    stays = figures["stays"]
    print(
        f"{name} ({figures['program']}, steps of {figures['step_ms']} ms, switch "
        f"{figures['switch_ms']} ms): stays of 4 s {stays['ratio']:.3f}x ± {stays['error_pct']} %"
    )
    for label, found in figures["lengths"].items():
        print(
            f"  {label:8} {found['ratio']:.3f}x ± {found['error_pct']:4.1f} %  "
            f"bias {found['bias_pct']:+5.1f} %  {found['rounds']} rounds"
        )
    first = figures["first_step"]
    print(f"  first step after a switch: {first['pct']:+.1f} ± {first['error_pct']} %")
    sys.stdout.flush()


def main() -> None:
    """Measure the settings that are named, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", choices=[*SETTINGS, []], metavar="SETTING")
    names = parser.parse_args().settings
    figures: dict[str, Any] = {}
    for name in names or SETTINGS:
        figures[name] = measure(name, SETTINGS[name])
        file = record.save("turns", figures, part="-".join(names))  # a kill loses one setting
    print(file)


if __name__ == "__main__":
    main()
