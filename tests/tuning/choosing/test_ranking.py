"""Which config is recommended, and which others are worth a look."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.turn import Played
from autotune.program.config import Config, KnobValue
from autotune.results.record import PlayedRounds, TrialRecord, latest
from autotune.tuning.choosing.ranking import ranked, recommended
from autotune.tuning.storage.study import Study
from tests.made import make_hardware, make_profile, make_record, make_space, make_study

WIDE = make_space(
    ["workers", "prefetch_factor", "batch_size", "precision", "memory_format", "flush_denormal"]
)
SPACE = WIDE.resolve(make_hardware(), make_profile())
OWN = SPACE.baseline


def config(**changes: KnobValue) -> Config:
    return OWN.replace(**changes)


def study_of(
    folder: Path,
    played: Mapping[Config, float],
    others: Sequence[TrialRecord] = (),
    rounds: int = 30,
    space: ResolvedSpace = SPACE,
) -> Study:
    """Return a study with records and rounds of these speedups, and other records."""
    study = make_study(folder, WIDE)
    speeds = {space.baseline: 1.0, **played}
    turns = tuple(Played(1.0, speed, 1.0, speed) for speed in speeds.values())
    for _ in range(rounds):  # each in another answer of the rig
        study.add_rounds(PlayedRounds(1, tuple(speeds), (turns,)))
    for record in [*(make_record(c, s) for c, s in speeds.items()), *others]:
        study.tell(record, space)
    return study


def best(study: Study, space: ResolvedSpace = SPACE) -> Config:
    assert study.speeds is not None
    return recommended(study, space)


def configs(records: Sequence[TrialRecord]) -> list[Config]:
    return [record.config for record in records]


def test_what_alters_rounding_must_give_more(tmp_path: Path) -> None:
    one = config(workers=2)
    changes: list[tuple[dict[str, KnobValue], float, bool]] = [
        ({"prefetch_factor": 4}, 1.017, True),
        ({"memory_format": "channels_last"}, 1.017, False),
        ({"memory_format": "channels_last"}, 1.03, True),
        ({"precision": "bf16"}, 1.017, False),
        ({"precision": "bf16"}, 1.03, True),
    ]
    for number, (change, gain, is_kept) in enumerate(changes):
        two = one.replace(**change)
        study = study_of(tmp_path / str(number), {one: 1.5, two: 1.5 * gain}, rounds=200)
        assert (best(study) == two) is is_kept, change


def test_a_config_of_a_process_of_its_own_must_be_faster_by_far(tmp_path: Path) -> None:
    here, own = config(workers=2), config(workers=2, flush_denormal=True)
    for number, (speed, is_first) in enumerate(((1.6, False), (2.0, True))):
        study = study_of(tmp_path / str(number), {here: 1.5}, [make_record(own, speed)])
        assert configs(ranked(study, SPACE)) == ([own, here] if is_first else [here, own])
        assert best(study) == here, "the race recommends what took turns"


def test_the_last_record_of_a_config_that_says_something_counts() -> None:
    """Not one that somebody ended, or whose program came to its end by itself."""
    first = make_record(config(workers=1), 1.2)
    for outcome in Outcome:
        if outcome is Outcome.OK:
            continue
        later = replace(first, measurement=None, speedup=None, ending=Ending(outcome, "it ended"))
        (found,) = latest([first, later])
        keeps = outcome in {Outcome.INTERRUPTED, Outcome.OUT_OF_TIME, Outcome.RAN_OUT}
        assert found is (first if keeps else later), outcome


@pytest.mark.parametrize("idle", [False, True])
def test_only_configs_with_the_fixed_values_may_win(tmp_path: Path, idle: bool) -> None:
    """A fixed knob that is idle in a config keeps none from winning."""
    space = WIDE.fix({"prefetch_factor": 8} if idle else {"precision": "bf16"}).resolve(
        make_hardware(), make_profile()
    )
    other = space.baseline.replace(workers=2)
    fixed = space.canonical(
        space.start.replace(workers=0 if idle else 2, memory_format="channels_last")
    )
    study = study_of(tmp_path, {other: 2.0, fixed: 1.3}, space=space)
    assert configs(ranked(study, space)) == [fixed]
    assert best(study, space) == fixed
