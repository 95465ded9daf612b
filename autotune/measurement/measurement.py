"""Measurement: what is known of one config that trained for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from autotune.measurement.interval import Interval
from autotune.measurement.readings import Compilation, Interference, Memory, RankLoad
from autotune.measurement.turn import Taken, Turn, played, rate

RECOMPILES_GIVEN_UP = 7  # torch keeps eight versions of a function, then runs it uncompiled


@dataclass(frozen=True)
class Measurement:
    """One config, as its turns show it.

    Attributes:
        throughput: Samples per second, end to end: data loading is included.
        samples_per_step: Over all ranks.
        largest_step: Its samples.
        wait_share: Share of the time that the program waited for its next batch, 0 to 1.
        tokens_per_sample: Token ids of a sample, padding included; 0.0 if the input is not token
            ids.
        memory: Peaks. Other configs in play have a part in them, once there are some.

    The rest is as in ``Taken``.
    """

    throughput: Interval
    step_s: float
    samples_per_step: float
    largest_step: float
    wait_share: float
    tokens_per_sample: float = 0.0
    samples_per_epoch: int | None = None
    memory: Memory = field(default_factory=Memory)
    power_w: float | None = None
    compilation: Compilation | None = None
    ranks: tuple[RankLoad, ...] = ()
    interference: Interference | None = None

    @classmethod
    def of(cls, turns: Sequence[Turn], taken: Taken) -> Self:
        """Return what turns of one config show, at least one, of a schedule that was taken."""
        counted = [one for turn in turns if (one := played(turn)) is not None]
        if not counted:  # all were disturbed; that is better than nothing
            calm = (replace(turn, disturbed=()) for turn in turns)
            counted = [one for turn in calm if (one := played(turn)) is not None]
        seconds, samples, steps = (
            sum(getattr(one, of) for one in counted) for of in ("seconds", "samples", "steps")
        )
        every = sum(sum(turn.samples) for turn in turns)
        calm_steps = [
            [n for at, n in enumerate(turn.samples) if at not in turn.disturbed] or turn.samples
            for turn in turns
        ]
        return cls(
            rate(counted),
            seconds / steps,
            samples / steps,
            max(map(max, calm_steps)),
            sum(one.wait_s for one in counted) / seconds,
            sum(turn.tokens for turn in turns) / every if every else 0.0,
            taken.samples_per_epoch,
            taken.memory,
            taken.power_w,
            taken.compilation,
            taken.ranks,
            taken.interference,
        )

    @property
    def communication_share(self) -> float | None:
        """Share of a step in which collectives run, 0 to 1; the smallest of all ranks.

        The rank that the others wait for communicates least. The remainder of the others' time in
        collectives is waiting for that rank.
        """
        shares = [r.communication_s / r.step_s for r in self.ranks if r.communication_s is not None]
        # Communication is recorded in later steps, which may be longer than those of the turns.
        return min(1.0, *shares) if shares else None

    @property
    def imbalance_share(self) -> float | None:
        """Mean share of a step that the ranks wait for the slowest one, 0 to 1; None if unknown."""
        own = [r.own_s for r in self.ranks if r.own_s is not None]
        if not own:
            return None
        return (max(own) - sum(own) / len(own)) / max(r.step_s for r in self.ranks)

    @property
    def slowest_rank(self) -> int | None:
        """The rank with the longest work outside of collectives; None if unknown."""
        known = [r for r in self.ranks if r.own_s is not None]
        return max(known, key=lambda r: r.own_s or 0.0).rank if known else None

    @property
    def tokens_per_s(self) -> Interval | None:
        """Tokens per second, padding included; None if the model input is not token ids."""
        return self.throughput.times(self.tokens_per_sample) if self.tokens_per_sample else None

    @property
    def joules_per_sample(self) -> float | None:
        """Energy per sample in joules; None if no energy counter can be read."""
        return None if self.power_w is None else self.power_w / self.throughput.estimate

    @property
    def is_disturbed(self) -> bool:
        """Whether something took much of the machine's time from the program."""
        return self.interference is not None and bool(self.interference.reasons)

    @property
    def is_taken_from(self) -> bool:
        """Whether others did, who may come and go; a quota is there all the time."""
        return self.interference is not None and bool(self.interference.by_others)


def disturbance_of(measured: Sequence[Measurement], where: str = "processes") -> str:
    """Return what disturbed some of the measurements, as a clause; empty if nothing did."""
    disturbed = [m.interference for m in measured if m.interference and m.interference.reasons]
    if not disturbed:
        return ""
    reasons = dict.fromkeys(reason for one in disturbed for reason in one.reasons)
    share = f" in {len(disturbed)} of {len(measured)} {where}" if len(measured) > 1 else ""
    return f"{', '.join(reasons)}{share}"


def warnings_of(measured: Sequence[Measurement]) -> tuple[str, ...]:
    """Return what the program itself does that makes measurements say less, as sentences."""
    found = []
    compiled = [m.compilation for m in measured if m.compilation is not None]
    if any(c.recompiles >= RECOMPILES_GIVEN_UP for c in compiled):
        found.append(
            f"torch.compile recompiled {max(c.recompiles for c in compiled)} times and "
            "gave up: shapes or values in this program change from step to step."
        )
    retries = sum(m.memory.alloc_retries or 0 for m in measured)
    if retries:
        found.append(
            "The GPU's memory is nearly full: torch emptied its cache "
            f"{retries} times. Use a smaller batch."
        )
    return tuple(found)
