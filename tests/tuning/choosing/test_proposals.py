"""Proposals: what is tried next, over a real study and a speed that is known by formula."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.knobs.space.space import ResolvedSpace, SearchSpace
from autotune.measurement.outcome import Ending
from autotune.measurement.readings import Memory
from autotune.measurement.turn import Played
from autotune.program.config import Config
from autotune.results.record import BaselineInfo, PlayedRounds, SearchOptions
from autotune.tuning.choosing.chooser import Field, Proposal
from autotune.tuning.choosing.diagnosis import Bottleneck, Diagnosis, diagnose
from autotune.tuning.choosing.proposals import FRESH, Proposals, restarts
from autotune.tuning.choosing.ranking import ranked
from autotune.tuning.choosing.sampler import Sampler
from autotune.tuning.storage.study import Study
from tests.made import (
    A100,
    make_hardware,
    make_measurement,
    make_profile,
    make_record,
    make_space,
    make_study,
)
from tests.tuning.choosing.test_chooser import Speed, formula

TIME_FOR = 30  # configs, of which the last ones are neighbours of the best
ROUNDS, NOISE = 20, 0.03
HARDWARE, PROFILE = make_hardware(), make_profile()
TINY = make_space(["workers", "prefetch_factor", "flush_denormal"])
NOTHING = Diagnosis(Bottleneck.COMPUTE_BOUND, "")
WIDE = make_space(
    ["workers", "prefetch_factor", "batch_size", "precision", "memory_format", "threads"]
)


class Search:
    """A search whose rig is a formula; keeps what was proposed, in order."""

    def __init__(
        self, directory: Path, space: SearchSpace, speed: Speed, sampler: str = "autotune"
    ) -> None:
        self.space: ResolvedSpace = space.resolve(HARDWARE, PROFILE)
        self.study: Study = make_study(directory, space, SearchOptions(180.0, sampler=sampler))
        self.speed, self.directory = speed, directory
        self.dice = random.Random(0)
        self.proposed: list[Config] = []
        written = make_record(self.space.baseline, 1.0, "the program as written")
        self.study.tell(written, self.space)
        self.study.facts = BaselineInfo(PROFILE, startup_s=4.0, step_s=0.01)

    @property
    def diagnosis(self) -> Diagnosis:
        return diagnose(PROFILE, make_measurement(wait_share=0.5), self.space, HARDWARE)

    def run(
        self, most: int = TIME_FOR, allows: Callable[[Config], bool] = lambda _: True
    ) -> list[Config]:
        """Try what is proposed, at most so many configs, as long as there is something."""
        proposals = Proposals(self.study, self.space, self.diagnosis, allows)
        for _ in range(most):
            share = max(0.0, 1 - len(self.proposed) / TIME_FOR)
            field = Field(self.study.records, self.study.speeds, share)
            proposal = proposals.next(field)
            if proposal is not None:
                self.measure(proposal)
            elif share:
                self.proposed.append(self.space.baseline)  # time goes on
        self.proposed = [config for config in self.proposed if config != self.space.baseline]
        return self.proposed

    def measure(self, proposal: Proposal) -> None:
        self.proposed.append(proposal.config)
        speed = self.speed(proposal.config)
        if not isinstance(speed, Ending) and proposal.why != FRESH:
            own = speed * math.exp(self.dice.gauss(0.0, NOISE / math.sqrt(ROUNDS)))
            turns = (Played(1.0, 1.0), Played(1.0, own))
            played = PlayedRounds(1, (self.space.baseline, proposal.config), (turns,) * ROUNDS)
            self.study.add_rounds(played)
        record = make_record(proposal.config, speed, proposal.why)
        self.study.tell(record, self.space, proposal.trial)


def flat(_: Config) -> float:
    return 1.0


# --- what enters the race -------------------------------------------------------------------------


def test_every_proposal_is_a_new_canonical_config_of_the_space(tmp_path: Path) -> None:
    vain = Search(tmp_path, WIDE, flat)
    vain.run()
    assert len(set(vain.proposed)) == len(vain.proposed) > 5
    for config in vain.proposed:
        assert vain.space.canonical(config) == config
        assert not vain.space.needs_restart(vain.space.baseline, config)
        for knob, domain in vain.space.domains.items():
            assert config[knob] in domain.values


def test_what_needs_a_fresh_process_or_has_no_time_and_room_does_not_enter(tmp_path: Path) -> None:
    search = Search(tmp_path, TINY, flat)
    search.run(allows=lambda config: config["workers"] != 1)
    assert search.proposed
    assert {c["flush_denormal"] for c in search.proposed} == {False}
    assert 1 not in {c["workers"] for c in search.proposed[1:]}


def test_fixed_values_are_measured_alone_first_and_held_throughout(tmp_path: Path) -> None:
    search = Search(tmp_path, WIDE.fix({"precision": "bf16"}), flat)
    search.run(15)
    assert search.proposed[0] == search.space.baseline.replace(precision="bf16")
    assert {c["precision"] for c in search.proposed} == {"bf16"}


# --- fresh processes and samplers -----------------------------------------------------------------


def test_restarts_are_the_other_values_of_knobs_that_act_when_a_process_starts() -> None:
    space = TINY.resolve(HARDWARE, PROFILE)
    assert list(restarts(space)) == [("flush_denormal", True)]
    own = make_profile(config_reads={"workers": 1})
    space = TINY.resolve(HARDWARE, own)
    assert list(restarts(space)) == [
        ("workers", 0),
        ("workers", 2),
        ("flush_denormal", True),
    ]
    assert list(restarts(space, {"flush_denormal"})) == [("flush_denormal", True)]


def test_fresh_processes_have_the_best_config_and_the_users_wish_first(tmp_path: Path) -> None:
    asked = TINY.with_values({"--hidden": ["64", "32"]})
    search = Search(tmp_path, asked, formula(workers={2: 1.4}))
    assert search.space.asked == {"--hidden"}
    search.run()
    proposals = Proposals(search.study, search.space, search.diagnosis)
    assert not [*proposals.restarted(lambda: False)]
    before = len(search.proposed)
    for proposal in proposals.restarted(lambda: True):
        search.measure(proposal)
    fresh = search.proposed[before:]
    assert {config["workers"] for config in fresh} == {2}
    hidden = [config["--hidden"] for config in fresh]
    own = search.space.baseline["--hidden"]
    assert own not in hidden[:-1]
    assert fresh[-1]["flush_denormal"] is True


def test_cudnns_timing_is_tried_with_a_word_about_shapes_that_change(tmp_path: Path) -> None:
    sizes = make_space({"cudnn": ("default", "benchmark")})
    profile = make_profile(device="cuda", convolutions=4)
    for shapes, says in ((30, True), (1, False)):
        space = sizes.resolve(make_hardware(gpus=(A100,)), profile)
        study = make_study(tmp_path / f"{shapes}", sizes, SearchOptions(180.0))
        study.facts = BaselineInfo(profile, startup_s=4.0, step_s=0.01)
        study.tell(make_record(space.baseline), space)
        diagnosis = replace(NOTHING, shapes=shapes)
        (proposal,) = Proposals(study, space, diagnosis).restarted(lambda: True)
        assert proposal.config["cudnn"] == "benchmark"
        assert ("batches of 30 shapes were seen" in proposal.why) is says


def test_of_a_batch_that_needs_a_fresh_process_only_sizes_that_fit_are_tried(
    tmp_path: Path,
) -> None:
    for second_gib, tried in ((5, [128, 256, 512]), (8, [128])):
        sizes = make_space({"batch_size": (64, 128, 256, 512)})
        profile = make_profile(config_reads={"batch_size": 64})
        space = sizes.resolve(HARDWARE, profile)
        study = make_study(tmp_path / f"{second_gib}", sizes, SearchOptions(180.0))
        study.facts = BaselineInfo(profile, startup_s=4.0, step_s=0.01)

        def tell(config: Config, gib: int, study: Study = study) -> None:
            measured = make_measurement(memory=Memory(host_bytes=gib << 30))
            study.tell(replace(make_record(config), measurement=measured), study.space)

        tell(space.baseline, 4)
        found = []
        for proposal in Proposals(study, space, NOTHING).restarted(lambda: True):
            found.append(proposal.config["batch_size"])
            tell(proposal.config, second_gib if found == [128] else 6)
        assert found == tried


def test_what_a_sampler_draws_while_there_is_no_room_for_it_may_enter_later(tmp_path: Path) -> None:
    search = Search(tmp_path, TINY, flat, Sampler.RANDOM)
    in_play = {1, 2}
    proposals = Proposals(
        search.study, search.space, search.diagnosis, lambda c: c["workers"] not in in_play
    )
    while (proposal := proposals.next(Field(search.study.records))) is not None:
        search.measure(proposal)
    in_play.clear()
    later = proposals.next(Field(search.study.records))
    assert later is not None
    assert later.config["workers"] in {1, 2}


@pytest.mark.parametrize("sampler", [name for name in Sampler if name is not Sampler.GP])
def test_every_sampler_finds_what_helps_much(tmp_path: Path, sampler: str) -> None:
    """Optuna's GP needs torch in this process, which the parent of a search must not import."""
    speed = formula(workers={2: 1.5}, precision={"bf16": 1.5})
    search = Search(tmp_path, WIDE, speed, sampler)
    search.run()
    best = ranked(search.study, search.space)[0].speedup
    assert best is not None
    assert best.estimate >= 1.45
    assert len(set(search.proposed)) > 9
