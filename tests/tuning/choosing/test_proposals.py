"""Proposals: what is tried next, over a real study and a speed that is known by formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.knobs.space.space import ResolvedSpace, SearchSpace
from autotune.measurement.interval import Interval
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.visit import Visit
from autotune.program.config import Config, KnobValue
from autotune.results.record import AGAIN, BaselineInfo, SearchOptions, TrialRecord, latest
from autotune.tuning.choosing.diagnosis import diagnose
from autotune.tuning.choosing.proposals import Proposals, restarts
from autotune.tuning.choosing.ranking import ranked
from autotune.tuning.choosing.sampler import SAMPLERS
from autotune.tuning.storage.study import Study
from tests.made import (
    make_hardware,
    make_measurement,
    make_profile,
    make_record,
    make_space,
    make_study,
    memory_of,
)

TIME_FOR = 40  # trials, of which the last ones are spent on what may be best
Speed = Callable[[Config], float | Ending]
HARDWARE = make_hardware()
PROFILE = make_profile()
TINY = make_space(["num_workers", "prefetch_factor", "compile"])
WIDE = make_space(
    ["num_workers", "prefetch_factor", "batch_size", "precision", "channels_last", "num_threads"]
)


class Search:
    """A search whose rig is a formula; keeps what was proposed, in order."""

    def __init__(
        self,
        directory: Path,
        space: SearchSpace,
        speed: Speed,
        seed: int = 0,
        sampler: str = "autotune",
    ) -> None:
        self.space: ResolvedSpace = space.resolve(HARDWARE, PROFILE)
        self.study: Study = make_study(directory, space, SearchOptions(180.0, sampler=sampler))
        self.speed = speed
        self.proposed: list[Config] = []
        self.again: list[Config] = []
        self._seed = seed
        self._directory = directory
        trial = self.study.ask_for(self.space.baseline, self.space)
        self.study.tell(trial, self._record(self.space.baseline, 1.0, "the program as written"))
        self.study.facts = BaselineInfo(PROFILE, startup_s=4.0, step_s=0.01)

    def _record(self, config: Config, outcome: float | Ending, why: str) -> TrialRecord:
        record = make_record(config, outcome, why)
        if isinstance(outcome, Ending):
            return record
        visit = Visit(1, 2.0 * len(self.study.records), math.log(1000 * outcome), 0.005)
        return replace(record, visits=(visit,))

    def run(self, most: int = 500, *, restart: bool = True, wait_share: float = 0.5) -> None:
        measurement = make_measurement(wait_share=wait_share)
        diagnosis = diagnose(PROFILE, measurement, self.space, HARDWARE)
        proposals = Proposals(
            self.study,
            self.space,
            diagnosis,
            self._seed,
            lambda _: restart,
            lambda: max(0.0, 1 - len(self.study.records) / TIME_FOR),
        )
        for proposal in proposals:
            (self.again if proposal.why == AGAIN else self.proposed).append(proposal.config)
            outcome = self.speed(proposal.config)
            self.study.tell(proposal.trial, self._record(proposal.config, outcome, proposal.why))
            if len(self.proposed) >= most or len(self.study.records) > TIME_FOR:
                return
        assert len(self.proposed) < most, "the proposals should have come to an end"

    def resumed(self) -> None:
        """Go on as another process would: with nothing but the storage."""
        self.study = Study.load(memory_of(self._directory), "autotune")
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
def test_a_tiny_space_is_searched_to_its_best_and_no_new_config_is_proposed_twice(
    tmp_path: Path, seed: int
) -> None:
    speed = formula(num_workers={2: 1.2}, prefetch_factor={8: 1.05}, compile={"default": 1.3})
    search = Search(tmp_path, TINY, speed, seed)
    search.run(most=20)
    assert len(set(search.proposed)) == len(search.proposed)
    assert search.best.config["compile"] == "default"
    assert search.best.config["num_workers"] == 2


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


def test_each_proposal_is_recorded_and_says_why_and_what_was_expected(vain: Search) -> None:
    records = vain.study.records[1:]
    assert [r.config for r in records if not r.is_again] == vain.proposed
    assert all(r.why for r in records)
    assert records[0].why == "every move that should help, at once"


def test_the_trial_of_each_proposal_holds_the_very_values_that_are_measured(vain: Search) -> None:
    """The sampler learns from the values in its trial: they must be those of the config."""
    for trial in vain.study._study.get_trials(deepcopy=False):
        if "record" in trial.user_attrs:
            config = trial.user_attrs["record"]["config"]["values_by_knob"]
            sampled = Config({**config, **trial.params})
            assert dict(vain.space.canonical(sampled)) == config


def test_all_that_should_help_comes_first(vain: Search) -> None:
    all_in = diagnose(PROFILE, make_measurement(wait_share=0.5), vain.space, HARDWARE).all_in
    assert all_in
    assert vain.proposed[0] == vain.space.canonical(vain.space.start.replace(**all_in))


def test_a_space_in_which_nothing_helps_is_given_up(vain: Search) -> None:
    assert len(vain.study.records) < vain.space.size / 4


def test_coupled_knobs_are_found_that_gain_nothing_alone(tmp_path: Path) -> None:
    """Seen on two cores: 2 workers alone 1.01x, 1 thread alone 0.80x, both together 1.42x."""

    def speed(config: Config) -> float:
        coupled = {(2, 2): 1.01, (0, 1): 0.80, (2, 1): 1.42, (1, 1): 1.2}
        return coupled.get((int(config["num_workers"]), int(config["num_threads"])), 0.9)

    search = Search(tmp_path, WIDE, speed)
    search.run(most=20)
    best = search.best.config
    assert (best["num_workers"], best["num_threads"]) == (2, 1)


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
    assert compiled[0]["num_workers"] == 2
    assert len(compiled) <= 3


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
    assert search.best.config["compile"] == "default"


def test_a_trial_that_the_user_interrupted_is_tried_again_after_resuming(tmp_path: Path) -> None:
    search = Search(tmp_path, TINY, lambda _: Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C"))
    search.run(most=1)
    search.resumed()
    search.speed = flat
    search.run(most=8)
    assert search.proposed[0] in search.proposed[1:]


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


def test_a_config_with_a_process_of_its_own_has_to_be_faster_beyond_the_noise() -> None:
    knobs = make_space(["num_workers", "channels_last", "compile"])
    space = knobs.resolve(HARDWARE, PROFILE)
    here = space.baseline.replace(num_workers=2)
    own = here.replace(compile="default")
    more = own.replace(channels_last=True)

    def order(*speeds: tuple[Config, float], spread: float = 0.02) -> list[Config]:
        records = [make_record(config, speed) for config, speed in speeds]
        known = [
            replace(r, speedup=Interval(s, s * math.exp(-2 * spread), s * math.exp(2 * spread)))
            for r, (_, s) in zip(records, speeds, strict=True)
        ]
        return configs(ranked(known, space))

    assert order((own, 1.55), (here, 1.50)) == [here, own]
    assert order((own, 1.70), (here, 1.50)) == [own, here]
    assert order((own, 1.63), (here, 1.50), spread=0.2) == [here, own], "hardly known"
    assert order((own, 1.80), (here, 1.50), spread=0.9) == [own, here], "however little is known"
    assert order((more, 1.81), (own, 1.80), (here, 1.50)) == [own, more, here]


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


# --- restarts and samplers -----------------------------------------------------------------------


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


def test_a_fresh_process_that_the_user_asked_for_is_tried_in_any_case(tmp_path: Path) -> None:
    search = Search(tmp_path, WIDE.with_values({"--hidden": ["64", "32"]}), flat)
    assert search.space.asked == {"--hidden"}
    search.run()
    assert {c["--hidden"] for c in search.proposed} == {
        "64",
        "32",
        search.space.baseline["--hidden"],
    }


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "gp"])
def test_every_sampler_finds_what_helps_much(tmp_path: Path, sampler: str) -> None:
    """Optuna's GP needs torch in this process, which the parent of a search must not import."""
    speed = formula(num_workers={2: 1.5}, precision={"bf16": 1.5})
    search = Search(tmp_path, WIDE, speed, sampler=sampler)
    search.run()
    assert search.best.speedup is not None
    assert search.best.speedup.estimate >= 1.5
    assert len(set(search.proposed)) == len(search.proposed)
