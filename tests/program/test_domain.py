"""Domain: the candidate values of one knob."""

from __future__ import annotations

import pytest

from autotune.program.config import KnobValue
from autotune.program.domain import Domain


def test_a_domain_without_values_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        Domain(())


def test_a_domain_names_each_value_once() -> None:
    with pytest.raises(ValueError, match=r"once, got \(2, 4, 2\)"):
        Domain((2, 4, 2))


def test_true_and_one_are_two_values() -> None:
    assert Domain((True, 1)).values == (True, 1)


@pytest.mark.parametrize(
    ("values", "value", "expected"),
    [
        ((0, 2, 4), 2, (0, 2, 4)),
        ((0, 2, 4), 3, (0, 2, 3, 4)),
        ((0, 2, 4), 6, (0, 2, 4, 6)),
        ((64, 128), 32, (32, 64, 128)),
        ((0.1, 0.5), 0.3, (0.1, 0.3, 0.5)),
        (("bf16",), "fp32", ("fp32", "bf16")),
        ((True,), False, (False, True)),
        ((False, True), True, (False, True)),
    ],
)
def test_including_keeps_numbers_sorted_and_puts_other_values_first(
    values: tuple[KnobValue, ...], value: KnobValue, expected: tuple[KnobValue, ...]
) -> None:
    assert Domain(values).including(value).values == expected


def test_including_leaves_the_domain_itself_alone() -> None:
    domain = Domain((2, 4))
    domain.including(8)
    assert domain.values == (2, 4)
