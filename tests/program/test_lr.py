"""The learning rate follows the global batch by the rule of the optimizer's family."""

import math

import pytest

from autotune.inside.ranks.group import Group
from autotune.inside.train import _ranks_note
from autotune.program.lr import LrRule, lr_factor, rule_for
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
        (("Adadelta", "SGD"), LrRule.NONE),
        (("Lion", "Optimizer"), LrRule.NONE),
        ((), LrRule.NONE),
    ],
)
def test_the_first_known_class_decides_and_an_unknown_optimizer_keeps_its_rate(
    families: tuple[str, ...], rule: LrRule
) -> None:
    assert rule_for(families) is rule


def test_the_factor_follows_the_rule_and_there_and_back_gives_the_old_rate() -> None:
    for growth in (0.25, 1.0, 100 / 64, 8.0):
        assert lr_factor(LrRule.LINEAR, growth) == pytest.approx(growth)
        assert lr_factor(LrRule.SQRT, growth) == pytest.approx(math.sqrt(growth))
        assert lr_factor(LrRule.NONE, growth) == 1.0
    for rule in LrRule:
        assert lr_factor(rule, 4.0) * lr_factor(rule, 0.25) == pytest.approx(1.0)


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
