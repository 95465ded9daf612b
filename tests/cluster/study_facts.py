"""What a shared study holds, by plain SQL over Optuna's tables: nothing of autotune reads it here.

The queries are understood by PostgreSQL and by SQLite alike.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Sql = Callable[[str], Sequence[Sequence[str]]]  # returns the rows of a query as text

OF_STUDY = "study_id = (select study_id from studies where study_name = '{study}')"
RESULTS = (
    f"select key, value_json from study_user_attributes where key like 'result:%' and {OF_STUDY}"
)
KEYS = f"""
    select key from study_user_attributes where key like 'result:%' and {OF_STUDY}
    group by key having count(*) > 1
"""
RUNNING = f"select number from trials where state not in ('COMPLETE', 'FAIL') and {OF_STUDY}"
# A request's name ends with its attempt: try:<arm>:1. One that is void never was a hand-out
HAND_OUTS = f"""
    select substr(name.value_json, 2, length(name.value_json) - 4), count(*)
    from trials join trial_user_attributes name
        on name.trial_id = trials.trial_id and name.key = 'name'
    where name.value_json like '"try:%' and {OF_STUDY} and not exists (
        select 1 from trial_user_attributes void
        where void.trial_id = trials.trial_id and void.key = 'void'
    ) group by 1
"""
ANNOUNCED = f"""
    select distinct own.value_json, name.value_json
    from trials
    join trial_user_attributes name on name.trial_id = trials.trial_id and name.key = 'name'
    join trial_user_attributes own on own.trial_id = trials.trial_id and own.key = 'group'
    where name.value_json like '"winner:%' and {OF_STUDY} and not exists (
        select 1 from study_user_attributes refusal
        where refusal.key like 'result:%' and refusal.{OF_STUDY}
        and refusal.value_json like '%"kind": "refused"%'
        and refusal.value_json like '%' || name.value_json || '%'
    )
"""


@dataclass(frozen=True)
class Facts:
    """What SQL says of one study.

    Attributes:
        results: How many results there are.
        doubled: Keys that are there more than once, and measurements that stand under two keys.
        gaps: Members of whose results one is missing, though a later one is there.
        running: Trials that are still running.
        hand_outs: How often each config was handed out.
        announcements: The names of the announcements that are in force, by group.
    """

    results: int
    doubled: list[str]
    gaps: list[str]
    running: list[str]
    hand_outs: dict[str, int]
    announcements: dict[str, list[str]]

    @property
    def most_hand_outs(self) -> int:
        """How often the config was handed out that was handed out most."""
        return max(self.hand_outs.values(), default=0)

    @property
    def row(self) -> dict[str, object]:
        """The columns of a table."""
        return {
            "results": self.results,
            "doubled": len(self.doubled),
            "missing": len(self.gaps),
            "running": len(self.running),
            "handed out": sum(self.hand_outs.values()),
            "most of one": self.most_hand_outs,
            "in force": max(map(len, self.announcements.values()), default=0),
        }

    def check(self) -> None:
        """Insist on what must hold, whatever failed."""
        assert self.results, "nothing was shared"
        assert not self.doubled
        assert not self.gaps
        assert not self.running, f"trials still run: {self.running}"
        assert self.most_hand_outs <= 2, self.hand_outs
        assert all(len(names) <= 1 for names in self.announcements.values()), self.announcements


def facts(sql: Sql, study: str) -> Facts:
    """Ask a database what it holds of a study."""
    results, keys, running, handed, announced = (
        sql(" ".join(query.format(study=study).split()))
        for query in (RESULTS, KEYS, RUNNING, HAND_OUTS, ANNOUNCED)
    )
    announcements: dict[str, list[str]] = {}
    for group, name in announced:
        announcements.setdefault(group, []).append(name)
    return Facts(
        len(results),
        [key for (key,) in keys] + _doubled(results),
        _gaps([key for key, _ in results]),
        [number for (number,) in running],
        {arm: int(count) for arm, count in handed},
        announcements,
    )


def _doubled(results: Sequence[Sequence[str]]) -> list[str]:
    """Return the measurements that stand under two keys, or twice under one, and those keys.

    Measured seconds have six digits or more: all of those of two rounds are never the same.
    """
    measured: dict[str, list[str]] = {}
    for key, value in results:
        result = json.loads(value)
        entry = result["entry"]
        turns = entry["turns"] if result["kind"] == "rounds" else []
        alone = [entry] if result["kind"] in {"tried", "claimed"} else []
        for one in (*turns, *alone):
            measured.setdefault(json.dumps(one), []).append(key)
    return [f"{text[:80]} {keys}" for text, keys in measured.items() if len(keys) > 1]


def _gaps(keys: Sequence[str]) -> list[str]:
    numbers: dict[str, set[int]] = {}
    for key in keys:
        member, _, number = key.removeprefix("result:").rpartition(":")
        numbers.setdefault(member, set()).add(int(number))
    return [member for member, found in numbers.items() if len(found) != max(found)]
