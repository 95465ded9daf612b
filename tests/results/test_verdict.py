"""The final screen: how long it is, and that a reader can compute each of its figures."""

import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.cli import search_report
from autotune.measurement.goal import Goal, Objective
from autotune.measurement.interval import Interval, LogRatio
from autotune.measurement.learning.training_trace import Agreement, Sameness
from autotune.measurement.limit import Limit
from autotune.measurement.readings import Interference, Memory
from autotune.program.config import Config, KnobValue
from autotune.program.may_change import MayChange
from autotune.program.profile import RunLength
from autotune.program.rehearsal import Rehearsal
from autotune.program.sharing_options import SharingOptions
from autotune.results.doubts import doubts
from autotune.results.finding import Finding
from autotune.results.record import ClaimProcess
from autotune.results.rehearsals import Canary, RehearsalRecord
from autotune.results.result import Contribution, LargerBatch, SearchResult
from autotune.results.shared_answer import GroupAnswer, MachineClaim, Refusal, SharedAnswer
from autotune.results.training_steps import TrainingSteps
from autotune.results.verdict import listed, verdict
from autotune.results.wording import about, printed_duration, times
from tests.made import (
    PROGRAM,
    make_head,
    make_measurement,
    make_profile,
    make_record,
    make_space,
)
from tests.results.test_result import make_result
from tests.scripted import Script, begin

BEST = Path("best.yaml")
GIB = 1 << 30
MANY: dict[str, KnobValue] = {
    "workers": 0, "threads": 2, "precision": "fp32", "memory_format": "contiguous",
    "optimizer": "for-loop", "keep_freed_memory": False, "batch_size": 64,
}  # fmt: skip
CHANGED: dict[str, KnobValue] = {
    "workers": 1, "threads": 1, "precision": "bf16", "memory_format": "channels_last",
    "optimizer": "fused", "keep_freed_memory": True,
}  # fmt: skip
GAINS = {"workers": 1.4, "threads": 1.2, "precision": 1.2, "memory_format": 1.02, "optimizer": 1.1}
SPEEDUP = re.compile(r"^([\d.,]+)x .*?\(95 % between ([\d.]+)x and ([\d.]+)x\)")
RATE = re.compile(r"([\d.,]+) → about ([\d.,]+) (samples/s|steps/s|GiB|J/sample)")
TIME = re.compile(r"your training +(.+?) → about (.+?) \((.+?); no evaluation\)")
PAYS = re.compile(r"from the ([\d,]+)(st|nd|rd|th) training on \(the search took (.+?)\)")
RULED_OUT = re.compile(r"a gain of more than (\d+) % is ruled out for it")
LENGTHS = (RunLength(), RunLength(25.0, "--epochs 25"), RunLength(steps=5000, where="--steps 5000"))
CASES = [*product(Objective, LENGTHS)]
SAVES = re.compile(r"saves (.+?) of (.+?); the search took (.+?)$", re.MULTILINE)


def screen_of(result: SearchResult, capsys: pytest.CaptureFixture[str]) -> str:
    search_report.show(result, BEST)
    return capsys.readouterr().out


def number(text: str) -> float:
    return float(text.replace(",", ""))


def seconds(text: str) -> float:
    """Return a duration as it is printed, in seconds."""
    units = {"h": 3600, "min": 60, "m": 60, "s": 1}
    return sum(int(n) * units[unit] for n, unit in re.findall(r"(\d+) ?(h|min|m|s)\b", text))


def made(**changes: Any) -> SearchResult:
    """Return a search that found six changes, with changes."""
    base, best = Config(MANY), Config({**MANY, **CHANGED})
    told = tuple(
        Contribution(knob, MANY[knob], CHANGED[knob], Interval(gain, gain - 0.1, gain + 0.1))
        for knob, gain in GAINS.items()
    )
    about: dict[str, Any] = {
        "baseline": base, "best": best, "candidate": best, "attempt": best,
        "records": (make_record(base), make_record(best, 1.3)),
        "head": make_head(make_space([*MANY])), "contributions": told,
        "bottleneck_evidence": "the program waits for data 55 % of the time; and so on",
        "memory": (Memory(host_bytes=GIB), Memory(host_bytes=2 * GIB)),
    }  # fmt: skip
    return replace(make_result({}), **{**about, **changes})


def searched(seed: int, folder: Path) -> SearchResult:
    """Search a program that is drawn, in virtual time: tiny gains and vast, noise, slow starts."""
    dice, (objective, length) = random.Random(seed), CASES[seed % len(CASES)]
    rate, gain = math.exp(dice.uniform(1.0, 11.0)), math.exp(dice.uniform(0.1, 2.5))
    is_metered = objective is Objective.ENERGY  # whose meter is read in long, even turns alone
    script = Script(
        {"workers": {1: gain}, "precision": {"bf16": dice.uniform(0.9, 1.4)}},
        samples_per_s=1000.0 if is_metered else rate,
        profile=make_profile(length=length),
        start_s=dice.uniform(1.0, 9.0),
        noise=0.0 if is_metered else dice.choice([0.01, 0.3]),
        process_noise=0.01 if is_metered else dice.choice([0.01, 0.1]),
        power_w=lambda config: 50.0 if config["precision"] == "bf16" else 90.0,
        peak_bytes=lambda config, _: (GIB if config["precision"] == "bf16" else 3 * GIB) // 2,
    )
    knobs: dict[str, tuple[KnobValue, ...] | None] = {
        "workers": (0, 1),
        "precision": ("fp32", "bf16"),
    }
    search = begin(folder, script, knobs, seed, Goal(objective), may_change=MayChange.ANY)
    return search.go_on(dice.choice([120.0, 180.0, 600.0]))


def test_each_figure_can_be_computed_from_the_claim_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of fifty searches; a figure that is computed from others is right to its last digit."""
    seen = Counter[str]()
    for seed in range(50):
        result = searched(seed, tmp_path / str(seed))
        said = screen_of(result, capsys)
        seen[result.finding] += 1
        if result.finding is Finding.FASTER:
            seen.update(recomputed(result, said))
        elif ruled := RULED_OUT.search(said):
            attempt = re.search(r"best attempt .*?\(95 %: .*? to ([\d.]+)x\)", said, re.DOTALL)
            assert attempt is not None, said
            assert number(ruled[1]) == pytest.approx(100 * (number(attempt[1]) - 1), abs=1), said
    assert seen[Finding.FASTER] >= 40, seen
    assert {"wide", "narrow", "training", "pays", "saves", "GiB", "J/sample"} <= seen.keys(), seen


def recomputed(result: SearchResult, said: str) -> Iterator[str]:
    """Compute each figure of a verdict from its first line; yield what was to be computed."""
    claimed = SPEEDUP.match(" ".join(said.split()))
    assert claimed is not None, said
    claim, low, high = map(number, claimed.groups())
    is_wide = result.speedup.half_width_pct > 10
    yield "wide" if is_wide else "narrow"
    assert len(claimed[1].replace(".", "").replace(",", "")) == (2 if is_wide else 3), said
    assert low <= claim <= high, said
    before, after, unit = RATE.findall(said)[0]
    yield unit
    factor = 1 / claim if unit in {"GiB", "J/sample"} else claim
    assert number(after) == number(f"{about(number(before) * factor):.10g}"), said
    flat = re.sub(r"\n {18}(?=\w)", " ", said)
    time = TIME.search(flat)
    assert (time is None) is (result.training_steps is None or unit != "samples/s"), said
    if time is None:
        return
    yield "training"
    before_s, after_s = seconds(time[1]), seconds(time[2])
    start, compiling = (re.search(rf"\+ ([^+]+) {what}", time[3]) for what in ("start", "comp"))
    start_s, compile_s = (0.0 if one is None else seconds(one[1]) for one in (start, compiling))
    computed_s = start_s + compile_s + max(0.0, before_s - start_s) / claim
    assert after_s == printed_duration(computed_s), said
    saved_s = before_s - after_s
    if pays := PAYS.search(said):
        yield "pays"
        assert number(pays[1]) == math.ceil(seconds(pays[3]) / saved_s) > 1, said
    elif saves := SAVES.search(said):
        yield "saves"
        assert seconds(saves[1]) == printed_duration(saved_s), said
        assert seconds(saves[2]) == before_s, said
        assert seconds(saves[3]) <= saved_s, said
    else:
        assert saved_s <= 0, said


def learned(best: Config) -> RehearsalRecord:
    """Return what was found of the loss under a config, in wide figures."""
    ran = Rehearsal(None)
    by_design = {"memory_format": "channels_last", "precision": "bf16"}
    config = best.replace(workers=0, threads=2)
    gap = Interval(0.0912, -0.0009, 0.1893)
    return RehearsalRecord(config, ran, by_design=by_design, learning=gap)


def shared_results(many: dict[str, Any], best: Config) -> dict[str, SearchResult]:
    """Return searches that several machines shared, by what they found together."""
    options = replace(
        make_head(make_space([*MANY])).options, sharing=SharingOptions("grpc://h:1", "x")
    )
    head = make_head(make_space([*MANY]), options=options)
    machines = [
        MachineClaim(
            f"node{n:02d}.cluster.example.org", 2 + n % 2, Interval(1.3 + n / 99, 1.1, 1.6)
        )
        for n in range(9)
    ]
    groups = [
        GroupAnswer(str(n), "8x NVIDIA A100-SXM4-80GB, AMD EPYC 7763 64-Core Processor, 64 cores",
                    Finding.FASTER, best, Interval(2.0 + n, 1.9, 9.9))
        for n in range(4)
    ]  # fmt: skip
    groups[1] = GroupAnswer("none", "Intel Xeon, 2 cores", Finding.TOO_NOISY)
    differs = (replace(machines[0], is_here=True), replace(machines[1], differs=True))
    shared = SharedAnswer((*machines,), groups=(*groups,))
    alone = SharedAnswer((machines[0],), groups=(*groups,))
    why = "the check: losses part from step 3 on, by 20 % in the end, which is more than twice that"
    refusal = Refusal(best, "node00.cluster.example.org", "node01.cluster.example.org", why)
    return {
        "shared, all there is": made(**many, head=head, shared=shared),
        "shared, three machines": made(
            head=head, shared=SharedAnswer((*machines[:3],), groups=(*groups[:2],))
        ),
        "shared, one alone": made(head=head, shared=alone),
        "shared, refused elsewhere": made(head=head, shared=replace(alone, refusals=(refusal,))),
        "shared, they differ": made(head=head, shared=SharedAnswer(differs, groups=(groups[0],))),
    }


def results() -> dict[str, SearchResult]:
    """Return one search of each kind, with as much to say as there may be."""
    base, best = Config(MANY), Config({**MANY, **CHANGED})
    busy = make_measurement(interference=Interference(0.8))
    ratios = [LogRatio(math.log(ratio), 0.05) for ratio in (1.4, 0.9)]
    claim = tuple(
        ClaimProcess(best, True, ratio, busy, None, (1000.0, 1250.0), 9, 9.0) for ratio in ratios
    )
    long = RunLength(25.0, "--epochs 25")
    kept: dict[str, Any] = {"best": base, "speedup": Interval(1.0, 1.0, 1.0)}
    unsure, none = Interval(1.18, 0.86, 1.62), Interval(1.03, 0.94, 1.13)
    cut = "fresh processes take about 46 s, but the budget had only 8 s left"
    limit = Limit(
        {"compute": 0.94, "optimizer": 0.04, "data": 0.01, "Python": 0.01},
        0.71, {"data": 1.01, "Python": 1.01, "optimizer": 1.04}, True,
    )  # fmt: skip
    larger = LargerBatch(best.replace(batch_size=256), Interval(2.1, 2.0, 2.2), 240.0)
    many: dict[str, Any] = {
        "training_steps": TrainingSteps(long, 50_000.0, 7.0, 33.0), "larger_batch": larger,
        "warnings": ("The model is odd. " * 9,), "reason": "the budget is used up " * 9,
    }  # fmt: skip
    not_faster = {**kept, "claim": claim, "untried": ("compile=default", "devices=ddp-2")}
    return {
        "faster": made(),
        "faster, all there is": made(**many, claim=claim),
        "faster, larger batch claimed": made(larger_batch=replace(larger, is_confirmed=True)),
        **shared_results(many, best),
        "faster, by design": made(
            best=best.replace(workers=0, threads=2), rehearsals=(learned(best),)
        ),
        "faster, one setting": made(best=base.replace(keep_freed_memory=True)),
        "nothing found": made(
            finding=Finding.NOTHING_FOUND, candidate_speedup=none, **not_faster
        ),
        "nothing to try": made(
            **{**kept, "candidate": None, "attempt": None},
            finding=Finding.NOTHING_FOUND, candidate_speedup=None, records=(make_record(base),),
        ),
        "too noisy": made(finding=Finding.TOO_NOISY, candidate_speedup=unsure, **not_faster),
        "not confirmed": made(finding=Finding.UNCONFIRMED, reason=cut, **kept),
        "one process": made(finding=Finding.UNCONFIRMED, reason=cut, claim=claim[:1], **kept),
        "ended early": made(
            **{**kept, "candidate": None, "candidate_speedup": None},
            finding=Finding.UNCONFIRMED, reason="stopped by Ctrl-C",
        ),
        "at the limit": made(finding=Finding.AT_LIMIT, limit=limit, **kept),
        "not measured": made(
            **{**kept, "candidate": None, "attempt": None},
            finding=Finding.NOT_MEASURED, candidate_speedup=None, reason=cut,
            records=(make_record(base),),
        ),
    }  # fmt: skip


def test_no_screen_is_longer_than_15_lines_or_wider_than_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = set()
    for (name, result), is_terminal in product(results().items(), (False, True)):
        monkeypatch.setenv("FORCE_COLOR", "1" if is_terminal else "")
        said = re.sub(r"\x1b\[[0-9;]*m", "", screen_of(result, capsys))
        lines = said.splitlines()
        assert len(lines) <= 15, said
        assert max(map(len, lines)) <= 80, said
        assert not any(line.endswith(" ") for line in lines), said
        plain = said.removeprefix(search_report.MARKS[result.finding][0])
        told.add((name, plain))
    assert len(told) == len(results()), "the words are the same on a terminal and in a pipe"
    assert {result.finding for result in results().values()} == {*Finding}


def test_changes_are_sorted_by_gain_and_what_is_within_the_noise_is_marked() -> None:
    found = verdict(made(), BEST)
    assert [one.setting for one in found.changes] == [
        *("workers", "threads", "precision", "optimizer", "memory_format")
    ]
    assert [one.gain for one in found.changes] == [
        *("most of it", "~1.2x", "~1.2x", "~1.1x or none", "~1.02x or none")
    ], "the first one is above the claim"
    few, more = found.few_changes
    assert ([one.setting for one in few], more) == (["workers", "threads", "precision"], 2)
    one = verdict(results()["faster, one setting"], BEST)
    assert [one.values for one in one.changes] == ["off → on"], "where nothing else is changed"


def test_no_advice_is_given_that_cannot_help() -> None:
    """More time helps no config whose gain is ruled out, and none on a machine that others use."""
    rows = {
        name: {row.label: row.text for row in verdict(one, BEST).rest}
        for name, one in results().items()
    }
    more = "autotune resume run --budget 4m"
    assert rows["nothing found"]["to go on"] == more, "there are settings left"
    assert "to go on" not in rows["nothing to try"]
    assert "to go on" not in rows["at the limit"]
    assert rows["too noisy"]["to go on"] == f"on an idle machine: {more}"
    assert rows["not confirmed"]["confirm it"] == more
    assert rows["one process"]["confirm it"] == f"on an idle machine: {more}"
    assert rows["not measured"]["to go on"] == more


def test_what_is_left_open_is_told_with_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in {
        "nothing found": ("a gain of more than 13 % is ruled out for it", "not written"),
        "too noisy": (
            "Cannot tell: this machine is too noisy for gains below 1.4x",
            "other programs used the CPU in 2 of 2 fresh processes",
        ),
        "not confirmed": ("missing         2 fresh processes",),
        "one process": ("missing         1 of 2 fresh processes; the other gave 1.40x",),
        "at the limit": ("compute 94 % · optimizer 4 % · data 1 % · Python 1 %", "71 % of the GPU"),
        "nothing to try": ("nothing: no other setting can act on this program here",),
    }.items():
        said = screen_of(results()[name], capsys)
        for word in words:
            assert word in said, said


def test_a_shared_search_says_for_which_machines_its_claim_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, words in {
        "shared, all there is": (
            "1.25x faster on another machine like these (95 % between 1.20x and 1.30x)",
            "machines        9 machines, 22 processes: node00 1.3x, node01 1.3x + 7 more",
            "other kinds     + 4 more: autotune show -v",
        ),
        "shared, three machines": (
            "1.25x faster on another machine like these (95 %",
            "3 machines, 7 processes: ",
            "other kinds     2.0x on 8x NVIDIA A100-SXM4-80GB, AMD EPYC 7763",
            "too noisy to tell on Intel Xeon, 2 cores",
        ),
        "shared, one alone": (
            "1.25x faster, confirmed in fresh processes",
            "measured on this machine only: no second one has confirmed it",
            "+ 2 more: autotune show -v",
        ),
        "shared, refused elsewhere": (
            "measured on this machine only: another one has refused it",
            "refused         on node01: ",
        ),
        "shared, they differ": (
            "1.25x faster, confirmed in fresh processes",
            "they differ, so each has its own: ",
        ),
    }.items():
        said = screen_of(results()[name], capsys)
        for word in words:
            assert word in said, said
    alone = replace(results()["nothing found"], head=results()["shared, one alone"].head)
    assert "machines" not in screen_of(alone, capsys), "nothing is claimed"
    odd = GroupAnswer("[g]\n:", "A\x1b[2JB", Finding.NOTHING_FOUND, machines=("h\x07",))
    assert (odd.machine, odd.machines) == ("A?[2JB", ("h?",)), "others may not move the cursor"
    text = replace(alone, shared=SharedAnswer(groups=(odd,))).best_file().text()
    assert [*yaml.safe_load(text)["groups"]] == ["g"], "nor spoil the file"


def test_a_figure_that_may_be_all_noise_is_no_headline() -> None:
    """Such as after few rounds on a machine that was swamped."""
    for speedup in (Interval(23.0, 0.4, 1300.0), Interval(23.0, 1.2, 50.0)):
        unsure, found = (
            verdict(replace(results()[name], candidate_speedup=speedup), BEST)
            for name in ("too noisy", "not confirmed")
        )
        said = "Looks faster, but" if speedup.low > 1 else "Cannot tell yet: what looked best may"
        assert found.headline.startswith(said)
        assert ("gains below" in unsure.headline) is (speedup.high < 100)
    low = times(Interval(23.0, 0.6, 50.0))
    assert low == "23x (95 %: 0.6x to 50.0x)", "a loss does not read as none"


def test_a_larger_batch_that_won_alone_is_told_with_the_file_that_holds_it() -> None:
    larger = results()["faster, larger batch claimed"].larger_batch
    result = replace(results()["nothing found"], larger_batch=larger)
    rows = {row.label: row.text for row in verdict(result, result.own_file).rest}
    assert rows["larger batch"].endswith("autotune run --larger-batch run/best.yaml")
    assert "best.yaml" not in rows, "it is written"


def test_lines_to_type_fit_where_the_program_of_the_user_is_short() -> None:
    program = replace(
        PROGRAM, target="/home/user/examples/digits_cnn/train.py", args=("--epochs", "25")
    )
    head = replace(made().head, program=program)
    found = verdict(made(head=head), Path(".autotune/a_longer_name/candidate.yaml"))
    rows = {row.label: row.text for row in found.rest}
    assert rows["train with it"] == "autotune run .autotune/a_longer_name/candidate.yaml"
    assert "train.py" in verdict(made(head=head), Path("b.yaml")).rest[0].text
    unsafe = replace(head, program=replace(program, env={"LD_PRELOAD": "/evil.so"}))
    line = verdict(made(head=unsafe), Path(".autotune/a_longer_name/candidate.yaml")).rest[0].text
    assert "train.py" in line, "such a program is never taken from a record"


def test_the_best_yaml_that_people_have_is_named_where_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_result({"compile": "default"}, run_dir=tmp_path).save(BEST)
    rows = {row.label: row.text for row in verdict(results()["nothing found"], BEST).rest}
    assert re.fullmatch(r"not written; the one of \d\d \w{3} \(1\.25x\) is kept", rows["best.yaml"])
    BEST.write_text("else: true")
    rows = {row.label: row.text for row in verdict(results()["nothing found"], BEST).rest}
    assert rows["best.yaml"] == "not written; the file that is there is kept"


def test_a_list_of_settings_has_as_many_as_fit() -> None:
    base = Config(MANY)
    assert listed(base.replace(workers=2), base) == "workers 0 → 2"
    told = listed(Config({**MANY, **CHANGED}), base, taken=20)
    assert told == "workers 0 → 1, threads 2 → 1 + 3 more"


def test_of_a_config_that_was_compared_in_part_the_rest_is_named() -> None:
    same = Agreement(Sameness.BITS, steps=36)
    for cleared, left in (
        ({}, ", ".join(CHANGED)),
        ({**CHANGED, "precision": "fp32"}, "precision"),
        (CHANGED, ""),
    ):
        config = Config({**MANY, **cleared})
        result = made(canary=Canary(config, None, same if cleared else None))
        assert ", ".join(result.uncompared) == left
        assert result.training_note.startswith("Training: same, bit for bit") is bool(cleared)
        if left:
            said = f"{left} not compared: there was no time; --budget 4m has it."
            assert result.training_note.endswith(said)


def test_a_result_in_a_notebook_says_what_the_headline_says() -> None:
    assert repr(made(best=Config({**MANY, "workers": 1}))) == (
        "<SearchResult: 1.25x faster; workers=1>"
    )
    assert repr(results()["not measured"]).startswith("<SearchResult: nothing measured: fresh")


def test_that_others_took_the_machine_is_the_first_doubt_where_they_mostly_did() -> None:
    found = results()["faster, all there is"]
    busy = found.claim[0]
    idle = replace(busy, baseline=make_measurement())
    for claim, place in (((busy, busy), 0), ((busy, idle), 0), ((busy, idle, idle), 2)):
        listed = list(doubts(replace(found, claim=claim)))
        said = f"other programs used the CPU in {claim.count(busy)} of {len(claim)} fresh processes"
        assert listed[place] == said, listed
        assert listed.count(said) == 1
