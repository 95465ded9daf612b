"""The learning rate follows the global batch by the rule of the optimizer's family."""

from __future__ import annotations

import math

import pytest

from autotune.inside.ranks.group import Group
from autotune.inside.train import _ranks_note
from autotune.program.lr import RULE_BY_FAMILY, LrRule, lr_factor, rule_for
from tests.made import make_applied


@pytest.mark.parametrize(
    ("families", "rule"),
    [
        (("SGD", "Optimizer", "object"), LrRule.LINEAR),
        (("Adam", "Optimizer", "object"), LrRule.SQRT),
        (("AdamW", "Adam", "Optimizer"), LrRule.SQRT),
        (("SparseAdam", "Optimizer"), LrRule.SQRT),
        (("Adadelta", "Optimizer"), LrRule.NONE),
        (("MySGD", "SGD", "Optimizer"), LrRule.LINEAR),
        (("Lion", "Optimizer"), LrRule.NONE),
        ((), LrRule.NONE),
    ],
)
def test_the_first_known_class_decides_and_an_unknown_optimizer_keeps_its_rate(
    families: tuple[str, ...], rule: LrRule
) -> None:
    assert rule_for(families) is rule


def test_a_class_that_derives_from_a_known_one_but_is_itself_known_follows_itself() -> None:
    assert rule_for(("Adadelta", "SGD")) is LrRule.NONE


@pytest.mark.parametrize("batch_to", [16, 64, 100, 512])
def test_the_factor_follows_the_rule(batch_to: int) -> None:
    assert lr_factor(LrRule.LINEAR, batch_to / 64) == pytest.approx(batch_to / 64)
    assert lr_factor(LrRule.SQRT, batch_to / 64) == pytest.approx(math.sqrt(batch_to / 64))
    assert lr_factor(LrRule.NONE, batch_to / 64) == 1.0


@pytest.mark.parametrize("rule", LrRule)
def test_there_and_back_gives_the_old_rate_and_the_same_batch_changes_nothing(
    rule: LrRule,
) -> None:
    there_and_back = lr_factor(rule, 4.0) * lr_factor(rule, 0.25)
    assert there_and_back == pytest.approx(1.0)
    assert lr_factor(rule, 1.0) == 1.0


def test_every_rule_in_the_table_is_one_that_a_user_can_name() -> None:
    assert set(RULE_BY_FAMILY.values()) == {LrRule(text) for text in ("linear", "sqrt", "none")}


def test_more_ranks_than_were_searched_for_say_what_becomes_of_the_rate() -> None:
    group = Group(world_size=4)
    said = {
        rule: _ranks_note(make_applied({"devices": "ddp-2"}, lr_rule=rule), group)
        for rule in LrRule
    }
    assert all("A step has 2 times the samples" in note for note in said.values())
    by_kind = "the learning rate of each optimizer follows the rule for its kind."
    assert said[LrRule.AUTO].endswith(by_kind)
    assert said[LrRule.NONE].endswith("the learning rate stays.")
