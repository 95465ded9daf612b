"""Proposals: what is tried next, over a real study and a speed that is known by formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.knobs.space.space import ResolvedSpace, SearchSpace
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.config import Config, KnobValue
from autotune.results.record import AGAIN, TrialRecord, latest
from autotune.tuning.diagnosis import Diagnosis, Family, Move, diagnose
from autotune.tuning.proposals import (
    MAX_LOOKS,
    PATIENCE,
    SPACING,
    Proposals,
    combinations,
    ranked,
    restarts,
)
from autotune.tuning.storage.study import Study
from tests.made import (
    make_hardware,
    make_measurement,
    make_profile,
    make_record,
    make_space,
    make_study,
    storage_in,
)

Speed = Callable[[Config], float | Ending]
HARDWARE = make_hardware()
PROFILE = make_profile()
TINY = make_space(["num_workers", "prefetch_factor", "compile"])
WIDE = make_space(
    ["num_workers", "prefetch_factor", "batch_size", "precision", "channels_last", "num_threads"]
)


class Search:
    """A search whose rig is a formula; keeps what was proposed, in order."""

    def __init__(self, directory: Path, space: SearchSpace, speed: Speed, seed: int = 0) -> None:
        self.space: ResolvedSpace = space.resolve(HARDWARE, PROFILE)
        self.study: Study = make_study(directory, space)
        self.speed = speed
        self.proposed: list[Config] = []
        self.again: list[Config] = []
        self._seed = seed
        self._directory = directory
        trial = self.study.ask_for(self.space.baseline, self.space)
        self.study.tell(trial, make_record(self.space.baseline, 1.0, "the program as written"))

    def run(self, most: int = 500, *, restart: bool = True, wait_share: float = 0.5) -> None:
        measurement = make_measurement(wait_share=wait_share)
        diagnosis = diagnose(PROFILE, measurement, self.space, HARDWARE)
        proposals = Proposals(self.study, self.space, diagnosis, self._seed, lambda _: restart)
        for proposal in proposals:
            (self.again if proposal.why == AGAIN else self.proposed).append(proposal.config)
            outcome = self.speed(proposal.config)
            self.study.tell(proposal.trial, make_record(proposal.config, outcome, proposal.why))
            if len(self.proposed) >= most:
                return
        assert len(self.proposed) < most, "the proposals should have come to an end"

    def resumed(self) -> None:
        """Go on as another process would: with nothing but the storage."""
        self.study = Study.load(storage_in(self._directory), "autotune")
        self.study.take_lease()
        self.study.release_lease()

    @property
    def best(self) -> TrialRecord:
        return ranked(self.study.records, self.space)[0]


def formula(**factors: Mapping[KnobValue, float]) -> Speed:
    """Return a speed that is the product of one factor per knob, 1.0 where none is named."""

    def speed(config: Config) -> float:
        product = 1.0
        for knob, by_value in factors.items():
            product *= by_value.get(config[knob], 1.0)
        return product

    return speed


def flat(_: Config) -> float:
    return 1.0


# --- what is proposed -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_no_config_is_proposed_twice_and_a_tiny_space_is_tried_to_its_end(
    tmp_path: Path, seed: int
) -> None:
    speed = formula(num_workers={2: 1.2}, prefetch_factor={8: 1.05}, compile={"default": 1.3})
    search = Search(tmp_path, TINY, speed, seed)
    search.run()
    assert len(set(search.proposed)) == len(search.proposed)
    off = set(search.space.configs(search.space.baseline))
    on = set(search.space.configs(search.space.baseline.replace(compile="default")))
    assert {search.space.baseline, *search.proposed} == off | on
    assert search.best.config == Config(
        {"num_workers": 2, "prefetch_factor": 8, "compile": "default"}
    )


def test_what_may_be_the_best_is_measured_again_a_few_times_and_at_other_times(
    tmp_path: Path,
) -> None:
    search = Search(tmp_path, WIDE, formula(num_workers={2: 1.2}, precision={"bf16": 1.3}))
    search.run()
    looks = [record.config for record in search.study.records]
    assert search.again
    for config in set(search.again):
        places = [place for place, other in enumerate(looks) if other == config]
        assert len(places) <= MAX_LOOKS
        assert all(later - place > SPACING for place, later in pairwise(places))
    assert search.best.config in search.again
    slow = [c for c in search.again if search.speed(c) == 1.0]
    assert len(slow) <= 1, "only until something faster was known"


def test_a_config_that_fails_when_it_is_measured_again_has_failed() -> None:
    """Unless somebody ended it, or the program came to its end by itself."""
    first = make_record(Config({"num_workers": 1}), 1.2)
    for outcome in Outcome:
        if outcome is Outcome.OK:
            continue
        ending = Ending(outcome, "it ended")
        later = replace(first, measurement=None, speedup=None, ending=ending)
        (found,) = latest([first, later])
        keeps = outcome in {Outcome.INTERRUPTED, Outcome.OUT_OF_TIME, Outcome.RAN_OUT}
        assert found is (first if keeps else later), outcome


@pytest.fixture(scope="module")
def vain(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """A search, run to its end, in a space in which nothing helps."""
    search = Search(tmp_path_factory.mktemp("vain"), WIDE, flat)
    search.run()
    return search


def test_every_proposal_is_a_canonical_config_of_the_space(vain: Search) -> None:
    for config in vain.proposed:
        assert vain.space.canonical(config) == config
        assert set(config) == set(vain.space.baseline)
        for knob, domain in vain.space.domains.items():
            assert config[knob] in domain.values


def test_each_proposal_is_recorded_once_and_says_why(vain: Search) -> None:
    records = [r for r in vain.study.records[1:] if not r.is_again]
    assert [r.config for r in records] == vain.proposed
    whys = [r.why for r in records]
    assert all(whys)
    assert whys[0] == "2 workers load while 1 of 2 cores compute"
    assert "the best moves together" in whys
    assert "proposed by the sampler" in whys


def test_the_trial_of_each_proposal_holds_the_very_values_that_are_measured(vain: Search) -> None:
    """The sampler learns from the values in its trial: they must be those of the config."""
    for trial in vain.study._study.get_trials(deepcopy=False):
        if "record" in trial.user_attrs:
            config = trial.user_attrs["record"]["config"]["values_by_knob"]
            sampled = Config({**config, **trial.params})
            assert dict(vain.space.canonical(sampled)) == config


def test_the_moves_of_the_diagnosis_come_first(vain: Search) -> None:
    moves = diagnose(PROFILE, make_measurement(wait_share=0.5), vain.space, HARDWARE).moves
    first = [vain.space.canonical(vain.space.start.replace(**m.changes)) for m in moves]
    expected = [c for c in dict.fromkeys(first) if c != vain.space.baseline]
    assert vain.proposed[: len(expected)] == expected


def test_a_space_in_which_nothing_helps_is_given_up_with_patience(vain: Search) -> None:
    sampled = [r for r in vain.study.records if r.why == "proposed by the sampler"]
    assert len(sampled) == PATIENCE
    assert len(vain.proposed) < vain.space.size / 2


def test_coupled_knobs_are_found_that_gain_nothing_alone(tmp_path: Path) -> None:
    """Seen on two cores: 2 workers alone 1.01x, 1 thread alone 0.80x, both together 1.42x."""

    def speed(config: Config) -> float:
        coupled = {(2, 2): 1.01, (0, 1): 0.80, (2, 1): 1.42}
        return coupled.get((int(config["num_workers"]), int(config["num_threads"])), 0.9)

    search = Search(tmp_path, WIDE, speed)
    search.run(most=20)
    assert search.best.config.changes_from(search.space.baseline) == {
        "num_workers": 2,
        "num_threads": 1,
    }


def test_a_gain_that_needs_three_families_at_once_is_found(tmp_path: Path) -> None:
    speed = formula(num_workers={2: 1.3}, precision={"bf16": 1.3}, batch_size={256: 1.2, 512: 1.25})
    search = Search(tmp_path, WIDE, speed)
    search.run()
    found = search.best.config
    assert (found["num_workers"], found["precision"]) == (2, "bf16")
    assert int(found["batch_size"]) >= 256


def test_a_fresh_process_is_tried_at_the_best_config_so_far(tmp_path: Path) -> None:
    search = Search(tmp_path, TINY, formula(num_workers={2: 1.4}, compile={"default": 0.7}))
    search.run()
    compiled = [c for c in search.proposed if c["compile"] == "default"]
    assert len(compiled) == 1
    assert compiled[0]["num_workers"] == 2


def test_without_time_for_it_no_fresh_process_is_started(tmp_path: Path) -> None:
    search = Search(tmp_path, TINY, flat)
    search.run(restart=False)
    assert {c["compile"] for c in search.proposed} == {"off"}


def test_fixed_values_are_measured_alone_first_and_held_throughout(tmp_path: Path) -> None:
    search = Search(tmp_path, WIDE.fix({"precision": "bf16"}), flat)
    search.run(most=15)
    assert search.proposed[0] == search.space.baseline.replace(precision="bf16")
    assert {c["precision"] for c in search.proposed} == {"bf16"}


def test_a_space_of_fixed_knobs_alone_is_one_config(tmp_path: Path) -> None:
    search = Search(tmp_path, make_space([], fixed={"num_workers": 2}), flat)
    search.run()
    assert search.proposed == [Config({"num_workers": 2})]


def test_an_empty_space_proposes_nothing(tmp_path: Path) -> None:
    search = Search(tmp_path, make_space([]), flat)
    search.run()
    assert search.proposed == []


def test_a_config_that_does_not_fit_is_not_tried_again(tmp_path: Path) -> None:
    def speed(config: Config) -> float | Ending:
        if int(config["batch_size"]) >= 256:
            return Ending(Outcome.OUT_OF_MEMORY, "the device ran out of memory")
        return 1.0 + int(config["batch_size"]) / 1000

    search = Search(tmp_path, WIDE, speed)
    search.run()
    assert len(set(search.proposed)) == len(search.proposed)
    assert int(search.best.config["batch_size"]) == 128


# --- resumed --------------------------------------------------------------------------------------


def test_a_resumed_search_goes_on_where_it_stood(tmp_path: Path) -> None:
    search = Search(tmp_path, TINY, formula(compile={"default": 1.3}))
    for so_far in (2, 5, 9):
        search.run(most=so_far)
        search.resumed()
    search.run()
    assert len(set(search.proposed)) == len(search.proposed)
    assert len(search.proposed) == 2 * 7 - 1


def test_a_trial_that_the_user_interrupted_is_tried_again_after_resuming(tmp_path: Path) -> None:
    search = Search(tmp_path, TINY, lambda _: Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C"))
    search.run(most=1)
    search.resumed()
    search.speed = flat
    search.run(most=2)
    assert search.proposed[0] == search.proposed[1]


# --- ranking --------------------------------------------------------------------------------------

SPACE = WIDE.resolve(HARDWARE, PROFILE)


def config(**changes: KnobValue) -> Config:
    return SPACE.baseline.replace(**changes)


def configs(records: Iterable[TrialRecord]) -> list[Config]:
    return [r.config for r in records]


def test_the_fastest_comes_first() -> None:
    slow, fast = config(num_workers=1), config(precision="bf16")
    assert configs(ranked([make_record(slow, 1.1), make_record(fast, 1.5)], SPACE)) == [fast, slow]


def test_within_the_noise_the_config_with_the_fewest_changes_comes_first() -> None:
    one = config(num_workers=2)
    three = config(num_workers=2, precision="bf16", channels_last=True)
    assert configs(ranked([make_record(three, 1.51), make_record(one, 1.50)], SPACE))[0] == one
    assert configs(ranked([make_record(three, 1.60), make_record(one, 1.50)], SPACE))[0] == three


def test_beyond_the_noise_fewer_changes_do_not_count() -> None:
    records = [
        make_record(config(num_workers=2, precision="bf16"), 1.5),
        make_record(config(num_workers=1), 1.1),
        make_record(config(num_workers=2, precision="bf16", channels_last=True), 1.3),
    ]
    assert [r.speedup.estimate for r in ranked(records, SPACE) if r.speedup] == [1.5, 1.3, 1.1]


def test_baseline_and_failed_trials_are_not_ranked() -> None:
    records = [
        make_record(SPACE.baseline, 1.0),
        make_record(config(num_workers=2), Ending(Outcome.OUT_OF_MEMORY, "out of memory")),
    ]
    assert ranked(records, SPACE) == []


def test_only_configs_with_the_fixed_values_may_win() -> None:
    space = WIDE.fix({"precision": "bf16"}).resolve(HARDWARE, PROFILE)
    other = space.baseline.replace(num_workers=2)
    fixed = space.start.replace(num_workers=2)
    records = [make_record(other, 2.0), make_record(fixed, 1.2)]
    assert configs(ranked(records, space)) == [fixed]


def test_a_fixed_knob_that_is_idle_keeps_no_config_from_winning() -> None:
    space = WIDE.fix({"prefetch_factor": 8}).resolve(HARDWARE, PROFILE)
    without_workers = space.canonical(space.start.replace(num_workers=0, batch_size=256))
    assert configs(ranked([make_record(without_workers, 1.5)], space)) == [without_workers]


# --- combinations and restarts --------------------------------------------------------------------


def test_the_best_move_of_each_family_is_combined_all_first_then_pairs() -> None:
    moves = (
        Move(Family.LOADING, {"num_workers": 1}, "."),
        Move(Family.LOADING, {"num_workers": 2}, "."),
        Move(Family.COMPUTE, {"precision": "bf16"}, "."),
        Move(Family.BATCH, {"batch_size": 256}, "."),
    )
    speeds = (0.9, 0.95, 1.3, 1.1)
    known = {
        config(**m.changes): make_record(config(**m.changes), s)
        for m, s in zip(moves, speeds, strict=True)
    }
    assert list(combinations(moves, known, SPACE)) == [
        {"num_workers": 2, "precision": "bf16", "batch_size": 256},
        {"num_workers": 2, "precision": "bf16"},
        {"num_workers": 2, "batch_size": 256},
        {"precision": "bf16", "batch_size": 256},
    ]


def test_families_without_a_measured_move_are_left_out_of_combinations() -> None:
    moves = (
        Move(Family.LOADING, {"num_workers": 1}, "."),
        Move(Family.COMPUTE, {"precision": "bf16"}, "."),
        Move(Family.BATCH, {"batch_size": 256}, "."),
    )
    failed = make_record(config(batch_size=256), Ending(Outcome.OUT_OF_MEMORY, "."))
    known = {
        failed.config: failed,
        config(num_workers=1): make_record(config(num_workers=1), 1.1),
    }
    assert list(combinations(moves, known, SPACE)) == []


def test_restarts_are_the_other_values_of_restart_knobs() -> None:
    space = make_space(["compile", "num_workers"]).resolve(HARDWARE, PROFILE)
    assert list(restarts(space, space.restart)) == [("compile", "default")]
    own = make_profile(config_reads={"num_workers": 1})
    space = make_space(["compile", "num_workers"]).resolve(HARDWARE, own)
    assert list(restarts(space, space.restart)) == [
        ("compile", "default"),
        ("num_workers", 0),
        ("num_workers", 2),
    ]
    assert list(restarts(space, {"compile"})) == [("compile", "default")]


def test_a_fresh_process_that_the_user_asked_for_comes_before_the_sampler(tmp_path: Path) -> None:
    asked = WIDE.with_values({"--hidden": ["64"]})
    space = asked.resolve(HARDWARE, PROFILE)
    assert space.asked == {"--hidden"}
    study = make_study(tmp_path, asked)
    study.tell(study.ask_for(space.baseline, space), make_record(space.baseline, 1.0))
    verdict = diagnose(PROFILE, make_measurement(), space, HARDWARE).verdict
    empty = Diagnosis(verdict, "evidence", ())
    proposal = next(iter(Proposals(study, space, empty, 0, lambda _: True)))
    assert (proposal.why, proposal.config["--hidden"]) == ("asked for", "64")


def test_a_diagnosis_without_moves_leaves_all_to_the_sampler(tmp_path: Path) -> None:
    space = WIDE.resolve(HARDWARE, PROFILE)
    study = make_study(tmp_path, WIDE)
    study.tell(study.ask_for(space.baseline, space), make_record(space.baseline, 1.0))
    verdict = diagnose(PROFILE, make_measurement(), space, HARDWARE).verdict
    empty = Diagnosis(verdict, "evidence", ())
    proposal = next(iter(Proposals(study, space, empty, 0, lambda _: True)))
    assert proposal.why == "proposed by the sampler"
    assert proposal.config != space.baseline
