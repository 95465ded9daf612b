"""What a shared study stands at, for people who look at it from outside."""

from collections.abc import Sequence
from dataclasses import replace

from autotune.measurement.turn import Played
from autotune.program.config import Config
from autotune.results.record import PlayedRounds
from autotune.sharing.entries import Member, Published, Rounds
from autotune.sharing.snapshot import Snapshot
from autotune.sharing.standing import Life, Observer, standing

NODE = Member("a", "node1", "boot", "pid", 7, 99, "g1", "8 cores", "try settings", 1)


class Looks:
    """A board of which each look shows what comes next."""

    def __init__(self, looks: Sequence[Snapshot]) -> None:
        self._looks = iter(looks)

    def look(self) -> Snapshot:
        return next(self._looks)


def seen(*members: Member, dead: Sequence[str] = ()) -> Snapshot:
    return Snapshot(None, {one.id: one for one in members}, frozenset(dead), ())


def test_the_program_as_written_is_known_also_where_budgets_hold_other_knobs() -> None:
    written, longer = Config({"workers": 0}), Config({"workers": 0, "compile": "off"})
    turn = Played(1.0, 1.0)
    entries = [
        Published("a", n, "node1", "g1", Rounds(PlayedRounds(1, configs, ((turn, turn),))))
        for n, own in enumerate((written, longer, written))
        for configs in [(own, own.replace(workers=n + 2))]
    ]
    (group,) = standing(replace(seen(NODE), published=tuple(entries)), ()).groups
    assert group.as_written == longer
    assert not standing(seen(NODE), ()).groups[0].as_written


def test_a_member_lives_once_its_beat_was_seen_to_change_and_a_first_look_does_not_tell() -> None:
    other = replace(NODE, id="b", host="node2")
    looks = [
        seen(NODE, other),
        seen(replace(NODE, beat=2), other),
        seen(replace(NODE, beat=2), other, dead="b"),
        seen(replace(NODE, beat=3, left=True), other, dead="b"),
    ]
    observer = Observer(Looks(looks))  # type: ignore[arg-type]
    lives = []
    for _ in looks:
        found = observer.look()
        lives.append([one.life for one in found.members])
    quiet = Life.QUIET
    assert lives == [
        [quiet, quiet],
        [Life.LIVING, quiet],
        [Life.LIVING, Life.GONE],
        [Life.LEFT, Life.GONE],
    ]
    assert found.is_over
    assert not standing(seen(), ()).is_over, "nobody has come yet"
