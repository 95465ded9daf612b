"""What fresh processes may be said to show, and what not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from autotune.cli.search_report import show
from autotune.measurement.goal import THROUGHPUT
from autotune.measurement.interval import Interval
from autotune.measurement.pilot import Pilot
from autotune.program.config import Config
from autotune.results.record import Round, Side, WindowRecord
from autotune.results.result import Finding
from autotune.tuning.confirming.confirm import ConfirmationPlan, confirm
from autotune.tuning.confirming.confirmation import MIN_ROUNDS, PAIRS, TURNS, Confirmation, read
from tests.made import make_interval, make_measurement
from tests.results.test_result import make_result

TRUTH = 1000.0


def window(side: Side, samples_per_s: float, drained_share: float) -> WindowRecord:
    measured = make_measurement(samples_per_s, drained_share=drained_share)
    return WindowRecord(side, Config({"side": side}), measured, 1.0)


def rounds_of(
    turns: Mapping[Side, tuple[Side, ...]], winner: float, drained: dict[Side, float], count: int
) -> list[Round]:
    """Return rounds in which the winner is that much faster, and sides drained their buffers."""
    rates = {Side.BASELINE: TRUTH, Side.WINNER: winner * TRUTH}
    return [
        [window(side, rates[side], drained.get(side, 0.0)) for side in turns[first]]
        for first in (Side.BASELINE, Side.WINNER) * (count // 2)
    ]


@pytest.mark.parametrize("turns", [TURNS, PAIRS], ids=["in one process", "apart"])
def test_speed_that_came_out_of_full_buffers_makes_no_claim(
    turns: Mapping[Side, tuple[Side, ...]],
) -> None:
    seeming = read(rounds_of(turns, 2.0, {Side.WINNER: 0.5}, 4))
    assert seeming is not None
    assert not seeming.is_faster
    assert seeming.speedup.estimate == pytest.approx(1.0)
    assert seeming.speedup.high >= 2.0, "it is not shown to be slow either"
    clean = read(rounds_of(turns, 2.0, {}, 4))
    assert clean is not None
    assert clean.is_faster


def test_more_samples_per_s_are_no_gain_where_the_whole_run_has_more_of_them() -> None:
    found = read(rounds_of(TURNS, 2.0, {}, 4), extra_work=4.0)
    assert found is not None
    assert found.speedup.estimate == pytest.approx(0.5)
    assert not found.is_faster


def test_buffers_that_the_baseline_drained_do_not_make_the_winner_slow() -> None:
    found = read(rounds_of(TURNS, 0.8, {Side.BASELINE: 0.5}, 2))
    assert found is not None
    assert found.speedup.low < 0.8
    assert found.speedup.high > 1.0


def faulting(rounds: list[Round], faults: Mapping[tuple[Side, Side, int], int]) -> list[Round]:
    """Return rounds with page faults of 1 ms each, by started side, side and its turn (0 or 1).

    They make a window slower by the time that they take.
    """
    changed = []
    for one in rounds:
        seen: list[Side] = []
        windows = []
        for w in one:
            blocks = w.measurement.blocks
            count = faults.get((one[0].side, w.side, seen.count(w.side)), 0)
            seen.append(w.side)
            more = tuple(replace(block, faults=count // len(blocks)) for block in blocks)
            measured = replace(w.measurement, blocks=more, fault_s=0.001)
            rate = measured.throughput.times(1 - measured.fault_share.estimate)
            windows.append(replace(w, measurement=replace(measured, throughput=rate)))
        changed.append(windows)
    return changed


def test_what_a_side_leaves_in_a_process_for_the_other_is_taken_out_and_helps_no_claim() -> None:
    rounds = rounds_of(TURNS, 1.05, {}, 6)
    seconds = sum(b.seconds for b in rounds[0][0].measurement.blocks)
    ten_percent = round(0.1 * seconds / 0.001)
    plain = read(faulting(rounds, {}))
    assert plain is not None
    assert plain.is_faster
    base, won = Side.BASELINE, Side.WINNER
    for turns, factor in (  # and that of the speedup which the sides have alone
        ([(base, base, 1)], 1.0),
        ([(base, base, 0)], 1 / 0.9),
        ([(won, won, 1)], 1.0),
        ([(won, won, 0)], 0.9),
        ([(won, base, 1), (base, won, 1)], 1.0),
        ([(won, base, 0), (won, base, 1)], 1.0),
        ([(won, won, 1), (base, won, 0), (base, won, 1)], 1.0),
    ):
        found = read(faulting(rounds, dict.fromkeys(turns, ten_percent)))
        assert found is not None
        assert found.speedup.estimate == pytest.approx(1.05 * factor, rel=0.01), turns
        assert found.carried_share == pytest.approx(1 / 0.9 - 1, abs=0.02)
    assert found is not None
    assert not found.is_faster, "as seen, the winner was slower"
    for own in (
        [(first, base, n) for first in Side for n in (0, 1)],
        [(first, won, n) for first in Side for n in (0, 1)],
    ):
        found = read(faulting(rounds, dict.fromkeys(own, ten_percent)))
        assert found is not None
        assert found.carried_share == 0.0, "a side faults alone as well"
    odd = {(base, side, n): ten_percent for side in Side for n in (0, 1)}
    one_process = read([*faulting(rounds[:1], odd), *faulting(rounds[1:], {})])
    assert one_process is not None
    assert one_process.speedup.estimate == pytest.approx(1.05)
    assert one_process.carried_share == 0.0, "the process faults, whatever runs in it"
    apart = read(faulting(rounds_of(PAIRS, 1.05, {}, 6), {(base, base, 0): ten_percent}))
    assert apart is not None
    assert apart.carried_share == 0.0, "they share no process"


def test_a_process_that_faults_less_as_it_ages_is_not_taken_for_what_sides_leave() -> None:
    """Such as a program that fills a cache for its first seconds, under any config."""
    rounds = rounds_of(TURNS, 1.05, {}, 6)
    seconds = sum(b.seconds for b in rounds[0][0].measurement.blocks)
    young = {(side, side, 0): round(100 * seconds) for side in Side}
    found = read(faulting(rounds, young))
    assert found is not None
    assert found.carried_share == 0.0
    assert found.rates[0].estimate == pytest.approx(TRUTH)


def test_page_faults_that_cost_no_time_change_nothing() -> None:
    rounds = rounds_of(TURNS, 1.05, {}, 6)
    seconds = sum(b.seconds for b in rounds[0][0].measurement.blocks)
    faults = {(Side.BASELINE, Side.WINNER, n): round(200 * seconds) for n in (0, 1)}
    fast = [
        [
            replace(w, measurement=replace(w.measurement, throughput=own.measurement.throughput))
            for w, own in zip(r, its, strict=True)
        ]
        for r, its in zip(faulting(rounds, faults), rounds, strict=True)
    ]
    found = read(fast)
    assert found is not None
    assert found.carried_share == 0.0


def test_page_faults_that_come_and_go_from_block_to_block_widen_nothing() -> None:
    rounds = faulting(rounds_of(TURNS, 1.05, {}, 4), {})
    last = rounds[0][-1]
    blocks = [replace(b, faults=50 * (n == 3)) for n, b in enumerate(last.measurement.blocks)]
    measured = replace(last.measurement, blocks=tuple(blocks))
    assert measured.fault_share.estimate > 0.02
    rounds[0][-1] = replace(last, measurement=measured)
    found = read(rounds)
    assert found is not None
    assert found.carried_share == 0.0


def test_a_speedup_that_outweighs_what_buffers_may_have_given_is_claimed() -> None:
    found = read(rounds_of(TURNS, 2.0, {Side.WINNER: 0.25}, 2))
    assert found is not None
    assert found.is_faster
    assert found.speedup.estimate == pytest.approx(1.5)


def test_one_process_claims_nothing_however_fast_its_winner_was() -> None:
    two = rounds_of(TURNS, 2.0, {}, MIN_ROUNDS)
    one = read(two[:1])
    both = read(two)
    assert one is not None
    assert both is not None
    assert one.speedup.low > 1.5
    assert (one.says_enough, one.is_faster, one.is_decided) == (False, False, False)
    assert (both.says_enough, both.is_faster) == (True, True)


def test_pairs_of_processes_claim_nothing_before_the_first_planned_look() -> None:
    rounds = rounds_of(PAIRS, 2.0, {}, 4)
    two, three = read(rounds[:2]), read(rounds[:3])
    assert two is not None
    assert three is not None
    assert (two.says_enough, two.is_faster) == (False, False)
    assert two.lack == "a claim needs 3 fresh processes of each config, and only 2 were measured"
    assert (three.says_enough, three.is_faster, three.lack) == (True, True, "")


def test_rounds_of_another_kind_do_not_count_and_other_candidates_have_spent_their_share() -> None:
    """A program that turned out to end within seconds has pairs of processes from then on."""
    asked: list[Round] = []
    plan = cast(
        "ConfirmationPlan",
        SimpleNamespace(
            winner=Config({"side": Side.WINNER}),
            needs_own_process=False,
            extra_work=lambda _: 1.0,
            slopes=(0.0, 0.0),
            goal=THROUGHPUT,
            claims=True,
        ),
    )

    def has_time_for(seconds: float, *, is_needed: bool) -> bool:
        assert seconds > 0.0
        assert not is_needed
        return False

    noisy = [
        [window(w.side, w.measurement.throughput.estimate * (1 + 0.01 * n), 0.0) for w in one]
        for n, one in enumerate(rounds_of(TURNS, 1.01, {}, 4))
    ]
    others = [[replace(w, config=Config({"other": w.side})) for w in one] for one in noisy]
    alone = confirm(plan, [*rounds_of(PAIRS, 3.0, {}, 2), *noisy], asked.append, has_time_for)
    after = confirm(plan, [*others, *noisy], asked.append, has_time_for)
    assert isinstance(alone, Confirmation)
    assert isinstance(after, Confirmation)
    assert alone.rounds == after.rounds == 4
    assert alone.speedup.estimate == pytest.approx(1.01)
    assert after.speedup.half_width_pct > alone.speedup.half_width_pct
    assert not asked


def test_what_one_process_gave_is_said_beside_what_was_measured_live(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = make_result(
        {"batch_size": 128},
        finding=Finding.UNCONFIRMED,
        candidate_speedup=make_interval(1.31),
        unclaimed=Interval(1.22, 1.1, 1.35),
        reason="a claim needs two fresh processes, and only one was measured",
    )
    show(result, result.run_dir / "best.yaml")
    said = capsys.readouterr().out
    assert "Not confirmed" in said
    assert "and only one was measured" in said
    assert "gave 1.31x [1.30, 1.32]; fresh processes gave 1.22x [1.10, 1.35]." in said


def paced(side: Side, samples_per_s: float, log_pace: float) -> WindowRecord:
    """Return a window at a pace of the machine that its pilots show."""
    pilot = Pilot(0.002 * math.exp(-log_pace), 0.002, 0.002, 0.002)
    measured = make_measurement(samples_per_s * math.exp(log_pace))
    measured = replace(measured, pilots_before=(pilot,), pilots_after=(pilot,))
    return WindowRecord(side, Config({"side": side}), measured, 1.0)


def paced_rounds(paces: Sequence[float], winner: float = 1.2) -> list[Round]:
    """Return two rounds of a winner, each window at one of the paces."""
    given = iter(paces)
    rates = {Side.BASELINE: TRUTH, Side.WINNER: winner * TRUTH}
    return [
        [paced(side, rates[side], next(given)) for side in TURNS[first]]
        for first in (Side.BASELINE, Side.WINNER)
    ]


def test_a_pace_that_pilots_show_is_taken_out_and_the_raw_figure_is_kept() -> None:
    rounds = paced_rounds((0.1, -0.2, 0.15, -0.1, 0.2, -0.15, 0.1, 0.0))
    raw, found = read(rounds), read(rounds, slopes=(1.0, 0.0))
    assert raw is not None
    assert found is not None
    assert raw.raw is None
    assert found.raw == raw.speedup
    assert found.speedup.estimate == pytest.approx(1.2)
    assert found.speedup.half_width_pct < 0.7 * raw.speedup.half_width_pct
    assert (raw.is_faster, found.is_faster) == (False, True)


def test_a_correction_that_contradicts_the_data_is_not_trusted() -> None:
    """The winner is visited at a slow pace by the pilots, to which the program pays no heed."""
    rounds = [
        [
            replace(
                w,
                measurement=replace(
                    w.measurement,
                    throughput=make_measurement(
                        TRUTH * (1.1 if w.side is Side.WINNER else 1.0)
                    ).throughput,
                ),
            )
            for w in one
        ]
        for one in paced_rounds((0, -0.5, -0.5, 0, -0.5, 0, 0, -0.5))
    ]
    raw, found = read(rounds), read(rounds, slopes=(1.0, 0.0))
    assert raw is not None
    assert found is not None
    assert found.speedup == raw.speedup


def test_without_pilots_around_each_window_nothing_is_corrected() -> None:
    rounds = paced_rounds((0.1, -0.2, 0.15, -0.1, 0.2, -0.15, 0.1, 0.0))
    window = rounds[0][0]
    bare = replace(window.measurement, pilots_before=(), pilots_after=())
    rounds[0][0] = replace(window, measurement=bare)
    found = read(rounds, slopes=(1.0, 0.0))
    assert found is not None
    assert found.raw is None
