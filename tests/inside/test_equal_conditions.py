"""Generators that draw equal numbers in every run."""

from __future__ import annotations

import random

import numpy.random.bit_generator
import pytest

from autotune.inside.seams.equal_conditions import _seed_the_unseeded


def test_generators_are_seeded_by_each_way_of_calling(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[dict[str, object]] = [{"a": "x", "version": 1}, {"a": "x"}, {"version": 1}, {}]

    def drawn() -> list[float]:
        dice = random.Random()
        numbers = []
        for way in ways:
            dice.seed(**way)  # type: ignore[arg-type]
            numbers.append(dice.random())
        dice.seed("x", version=1)
        return [*numbers, dice.random()]

    plain = drawn()
    monkeypatch.setattr(random.Random, "seed", random.Random.seed)  # puts it back afterwards
    monkeypatch.setattr(numpy.random.bit_generator, "randbits", random.getrandbits)
    _seed_the_unseeded(1)
    first = drawn()
    assert [*first[:2], first[4]] == [*plain[:2], plain[4]]
    _seed_the_unseeded(1)
    assert drawn() == first
