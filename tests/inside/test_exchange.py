"""Only what this run's ranks have signed is read, and nothing that is read can be code."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

from autotune.inside.processes.meetings import Meetings, RankCommand, gpus_of
from autotune.inside.ranks import exchange
from autotune.inside.ranks.data_sharding import ShardedSampler
from autotune.inside.ranks.exchange import SignedStore
from autotune.inside.ranks.group import Group
from tests.gpu_fakes import unused
from tests.made import A100, H100, V100

KEY = "of this run"


class Bomb:
    """Writes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that anybody writes to; nobody waits long for what is right."""
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.1)
    return HashStore()


PLAIN = (None, True, 7, -1.5, "naïve \udcff", [1, (2, "x", (None, [3]))], (), 2**70, math.inf)
SINGLE = (torch.tensor(7), numpy.int64(7), torch.tensor([1, 7])[1])


@pytest.mark.parametrize(
    ("value", "expected"),
    [*((one, one) for one in PLAIN), *((one, 7) for one in SINGLE), (numpy.float32(7.0), 7.0)],
)
def test_a_signed_value_comes_back_as_it_was_and_single_numbers_as_pythons(
    plain: Store, value: Any, expected: Any
) -> None:
    SignedStore(plain, KEY).set("name", [value])
    (found,) = SignedStore(plain, KEY).get("name")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind"),
    [({"a": 1}, "builtins.dict"), (b"x", "builtins.bytes"), (Path(), "pathlib.PosixPath")],
)
def test_anything_else_is_refused_by_its_type_with_the_mend(
    plain: Store, value: Any, kind: str
) -> None:
    with pytest.raises(TypeError, match=f"of type '{kind}'") as refused:
        SignedStore(plain, KEY).set("name", [value])
    assert "Leave devices out of the search." in str(refused.value)


def test_what_is_not_signed_for_this_name_by_this_key_is_never_read(plain: Store) -> None:
    ours, theirs = SignedStore(plain, KEY), SignedStore(plain, "of another run")
    theirs.set("replayed", 1)
    ours.set("one name", 2)
    plain.set("unsigned", "4")
    plain.set("cut", "5")
    plain.set("wrongly signed", f"{'0' * 64}6")
    plain.set("another name", plain.get("one name").decode())
    names = ("replayed", "unsigned", "cut", "wrongly signed", "another name")
    for name in names:
        with pytest.raises(RuntimeError, match=f"under '{name}' .* is signed by none of them"):
            ours.get(name)
    assert ours.get("one name") == 2


def test_a_pickle_in_the_place_of_the_ranks_data_and_orders_is_never_run(
    plain: Store, tmp_path: Path
) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "ran"), protocol=0).decode("ascii")
    signed_by_others = SignedStore(plain, "of a stranger")
    for name in ("order/data/1/0", "meeting/0/order/0"):
        plain.set(name, bomb)
        signed_by_others.set(f"{name}/", bomb)
        group = Group(1, 1, 2, 2, SignedStore(plain, KEY))
        with pytest.raises(RuntimeError, match="is signed by none of them"):
            next(
                iter(ShardedSampler([], group, "data", drop_last=False))
            ) if "data" in name else Meetings(group).attend()
    assert not (tmp_path / "ran").exists()
    pickle.loads(bomb.encode())
    assert (tmp_path / "ran").exists(), "it would have run"


def test_gpus_of_ranks_are_those_that_any_rank_sees_and_in_use_where_one_uses_it(
    plain: Store,
) -> None:
    """Ranks that autotune starts see one GPU each; those of a program may see all of them."""
    groups = [Group(rank, rank, 2, 2, SignedStore(plain, KEY)) for rank in (0, 1)]
    other = threading.Thread(
        target=lambda: Meetings(groups[1]).attend((unused(A100), H100, unused(V100)))
    )
    other.start()
    first = Meetings(groups[0])
    gathered = first.gather((A100, unused(H100)))
    first.announce(RankCommand())
    other.join()
    assert gpus_of(gathered) == (A100, H100, unused(V100))
    apart = [replace(gathered[0], gpus=(gpu,)) for gpu in (H100, A100)]
    assert gpus_of(apart) == (H100, A100)


def test_only_the_first_ranks_sampler_draws_and_its_tuples_and_numbers_are_kept(
    plain: Store,
) -> None:
    class Drawn:
        count = 0

        def __iter__(self) -> Iterator[Any]:
            self.count += 1
            return iter([0, (1, "a"), 0, [torch.tensor(2), 3], 0, numpy.int64(4)])

    groups = [Group(rank, rank, 2, 2, SignedStore(plain, KEY)) for rank in (0, 1)]
    samplers = [Drawn() for _ in groups]
    shares = (
        list(ShardedSampler(sampler, group, "data", drop_last=False))
        for sampler, group in zip(samplers, groups, strict=True)
    )
    assert list(shares) == [[0, 0, 0], [(1, "a"), [2, 3], 4]]
    assert [sampler.count for sampler in samplers] == [1, 0]
