"""SearchSpace: which knobs, with which values; resolved for one machine and one program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from autotune.errors import UsageError, did_you_mean
from autotune.knobs import Knob, Scope, registry
from autotune.knobs.base import Here
from autotune.machine.hardware import Hardware
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import KEYWORD, Flag, find
from autotune.program.lr import PARTS, batch_parts, global_batch
from autotune.program.profile import Profile

# Beyond, scaled learning rates stop holding for most models (knobs/batch_size.py has the source)
MAX_GROWTH = 8


@dataclass(frozen=True)
class SearchSpace:
    """What the user wants searched, before machine and program are known.

    Attributes:
        knobs: Values per knob; None lets the knob offer what fits here.
        fixed: Knobs held at one value in every config but the baseline.
        requested: Knobs that the user named: not to be able to offer one is an error.
        keeps_global_batch: Each optimizer step gets as many samples as the program gives it.
        max_global_batch: The most samples of a step; by default eight times the program's own.
        uses_flags: Where the seams cannot reach, a flag of the program's own that means the same
            knob is taken.
    """

    name: str
    knobs: Mapping[str, tuple[KnobValue, ...] | None]
    fixed: Mapping[str, KnobValue] = field(default_factory=dict)
    requested: frozenset[str] = frozenset()
    keeps_global_batch: bool = False
    max_global_batch: int | None = None
    uses_flags: bool = False

    def tune(self, names: Iterable[str]) -> SearchSpace:
        """Return the space of these knobs alone, with the values this space gives them.

        Raises:
            UsageError: for names that are no knobs.
        """
        names = list(names)
        check_names(names, "--tune")
        return replace(
            self,
            knobs={name: self.knobs.get(name) for name in names},
            fixed={k: v for k, v in self.fixed.items() if k not in names},
            requested=self.requested | frozenset(names),
        )

    def fix(self, settings: Mapping[str, object]) -> SearchSpace:
        """Return this space with knobs held at a value.

        Raises:
            UsageError: for names that are no knobs and values they do not take.
        """
        check_names(settings, "--fix")
        fixed = {knob: parse_value(knob, raw, "--fix") for knob, raw in settings.items()}
        return replace(
            self,
            knobs={k: v for k, v in self.knobs.items() if k not in fixed},
            fixed={**self.fixed, **fixed},
            requested=self.requested | frozenset(fixed),
        )

    def with_values(self, values: Mapping[str, Iterable[object]]) -> SearchSpace:
        """Return this space with the user's own candidate values for some knobs.

        Raises:
            UsageError: for names that are no knobs and values they do not take.
        """
        check_names(values, "--values")
        given = {
            knob: tuple(dict.fromkeys(parse_value(knob, raw, "--values") for raw in raws))
            for knob, raws in values.items()
        }
        return replace(
            self,
            knobs={**self.knobs, **given},
            fixed={k: v for k, v in self.fixed.items() if k not in given},
            requested=self.requested | frozenset(given),
        )

    def use_flags(self) -> SearchSpace:
        """Return this space with flags of the program's own in the place of seams."""
        return replace(self, uses_flags=True)

    def keep_global_batch(self) -> SearchSpace:
        """Return this space with as many samples in each step as the program has.

        The batch is not searched by itself then: it follows accumulation_steps.

        Raises:
            UsageError: when the user has named the batch size.
        """
        if "batch_size" in self.requested:
            raise UsageError(
                "'batch_size' is both asked for and to be left as it is. Drop one of the two."
            )
        return replace(self, keeps_global_batch=True)

    def up_to_global_batch(self, most: int | None) -> SearchSpace:
        """Return this space with at most so many samples in a step; None sets no limit.

        Raises:
            UsageError: when it is no number of samples.
        """
        if most is not None and most < 1:
            raise UsageError(f"--max-global-batch takes a number of samples, not {most}.")
        return replace(self, max_global_batch=most)

    def resolve(self, hardware: Hardware, profile: Profile) -> ResolvedSpace:
        """Return what can be searched with this program on this machine.

        Raises:
            UsageError: when a knob that the user named cannot act here, with the reason.
        """
        domains: dict[str, Domain] = {}
        refused: dict[str, str] = {}
        baseline: dict[str, KnobValue] = {}
        flags: dict[str, Flag] = {}
        needed = ["batch_size"] if self.keeps_global_batch else []
        for name in dict.fromkeys([*self.fixed, *self.knobs, *needed]):
            knob = registry()[name]
            offer = self._offer(knob, hardware, profile)
            if isinstance(offer, NotOffered):
                refused[name] = offer.reason
                continue
            baseline[name] = offer.own
            if offer.flag is not None:
                flags[name] = offer.flag
            given = (self.fixed[name],) if name in self.fixed else self.knobs.get(name)
            cannot = (knob.refusal(value, Here(hardware, profile)) for value in given or ())
            if reason := next(filter(None, cannot), None):
                refused[name] = reason
                del baseline[name]
                continue
            if name in self.fixed:
                continue
            domain = Domain(given) if given else offer.domain
            domain = domain.including(baseline[name])
            if self.keeps_global_batch and name == "batch_size":
                refused[name] = "the global batch is to be kept"
            elif len(domain.values) > 1:
                domains[name] = domain
            else:
                refused[name] = domain.alone or f"{baseline[name]} is the only value that fits here"
        if self.keeps_global_batch:
            _keep_divisors(domains, baseline, refused)
        if unmet := [f"  {n}: {refused[n]}" for n in sorted(self.requested & refused.keys())]:
            raise UsageError(
                "These knobs cannot act here:\n" + "\n".join(unmet) + "\nLeave them out."
            )
        scope = {n: registry()[n].scope for n in baseline}
        from_start = {*profile.config_reads, *flags}
        restart = frozenset(n for n in scope if scope[n] is Scope.RESTART or n in from_start)
        return ResolvedSpace(
            domains=domains,
            fixed={n: v for n, v in self.fixed.items() if n in baseline},
            baseline=Config(baseline),
            refused=refused,
            restart=restart,
            keeps_global_batch=self.keeps_global_batch,
            max_global_batch=self.max_global_batch or _most_samples(domains, baseline),
            flags={n: f for n, f in flags.items() if n in baseline},
            asked=restart & (self.requested | flags.keys() | _first(profile)),
        )

    def _is_named(self, knob: str) -> bool:
        """Tell whether the user names the knob, or values for it in a file."""
        is_kept = self.keeps_global_batch and knob in PARTS
        return is_kept or knob in self.requested or knob in self.fixed or bool(self.knobs.get(knob))

    def _offer(self, knob: Knob, hardware: Hardware, profile: Profile) -> _Offer | NotOffered:
        """What a knob has here: by the seams, or by the program itself where these do not reach."""
        domain, flag = knob.domain(Here(hardware, profile)), _own_flag(knob.name, profile)
        own = profile.config_reads.get(knob.name)
        if isinstance(domain, NotOffered) and own is not None:
            domain = Domain((own,))
        if (
            isinstance(domain, NotOffered)
            and domain.by_name is not None
            and self._is_named(knob.name)
        ):
            domain = domain.by_name
        if isinstance(domain, NotOffered) and self.uses_flags:
            flag = _flag_for(knob, profile)
            domain = (flag and knob.flag_domain(flag, Here(hardware, profile))) or domain
        if isinstance(domain, NotOffered):
            return domain
        if own is None:
            means_knob = flag is not None and knob.name not in flag.spellings
            own = knob.parse_flag(flag) if flag and means_knob else knob.current(profile)
        try:
            return _Offer(domain, knob.parse(own), flag)
        except ValueError as error:
            return NotOffered(f"the program has a value of its own for it, but it {error}")


@dataclass(frozen=True)
class _Offer:
    """What a knob has: values worth trying, the program's own, and the flag by which it acts."""

    domain: Domain
    own: KnobValue
    flag: Flag | None


@dataclass(frozen=True)
class ResolvedSpace:
    """The configs that can be measured here.

    Attributes:
        domains: Candidate values of each free knob, the baseline's among them.
        fixed: Knobs held at one value in every config but the baseline.
        baseline: What the program does by itself.
        refused: Why knobs of the space are not searched.
        restart: Knobs whose change needs a fresh process.
        keeps_global_batch: The batch is what accumulation_steps leaves of the program's own.
        max_global_batch: The most samples of a step, None without a batch.
        flags: Flags of the program's own by which knobs act, by the names of the knobs.
        asked: Restart knobs that the user asked for: they come before what may help anyway.
    """

    domains: Mapping[str, Domain]
    fixed: Mapping[str, KnobValue]
    baseline: Config
    refused: Mapping[str, str]
    restart: frozenset[str]
    keeps_global_batch: bool = False
    max_global_batch: int | None = None
    flags: Mapping[str, Flag] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()

    @property
    def start(self) -> Config:
        """The config nearest to the baseline that may win."""
        return self.baseline.replace(**self.fixed)

    @property
    def size(self) -> int:
        """Number of configs, idle knobs counted."""
        return math.prod(len(d.values) for d in self.domains.values())

    def canonical(self, config: Config) -> Config:
        """Return the config with idle knobs at the baseline's value: equal trials become equal."""
        idle = {
            n: self.baseline[n]
            for n in config
            if n in self.baseline and not registry()[n].is_active(config)
        }
        config = config.replace(**idle)
        if self.keeps_global_batch and (whole := global_batch(self.baseline)) is not None:
            parts = {**batch_parts(config), "batch_size": 1}
            config = config.replace(batch_size=max(1, whole // math.prod(parts.values())))
        return config

    def conflicts(self, config: Config) -> list[str]:
        """Return why the config cannot be measured, one sentence each; empty when it can."""
        found = [registry()[n].conflict(config) for n in config]
        samples = global_batch(config)
        if samples is not None and self.max_global_batch and samples > self.max_global_batch:
            found.append(
                f"A step of {samples} samples is more than --max-global-batch "
                f"({self.max_global_batch})."
            )
        whole = global_batch(self.baseline)
        if self.keeps_global_batch and whole is not None and samples != whole:
            found.append(f"{whole} samples cannot be shared out in that way.")
        return [sentence for sentence in found if sentence]

    def needs_restart(self, here: Config, there: Config) -> bool:
        """Tell whether going from one config to the other needs a fresh process."""
        return bool(self.restart & there.changes_from(here).keys())

    def configs(self, at: Config) -> Iterable[Config]:
        """Yield every canonical config without conflict whose restart knobs are those of *at*."""
        live = [n for n in self.domains if n not in self.restart]
        seen = set()
        for values in product(*(self.domains[n].values for n in live)):
            config = self.canonical(at.replace(**dict(zip(live, values, strict=True))))
            if config not in seen and not self.conflicts(config):
                seen.add(config)
                yield config


def check_names(names: Iterable[str], where: str) -> None:
    """Raise a UsageError that names every unknown knob, with the nearest known one."""
    known = registry()
    if unknown := [n for n in names if n not in known]:
        raise UsageError(
            "\n".join(f"Unknown knob '{n}' in {where}.{did_you_mean(n, known)}" for n in unknown)
            + "\n'autotune knobs' lists them."
        )


def parse_value(knob: str, raw: object, where: str) -> KnobValue:
    """Return a value of a knob, or raise a UsageError that says what the knob takes."""
    try:
        return registry()[knob].parse(raw)
    except ValueError as error:
        raise UsageError(f"{where}: knob '{knob}' {error}.") from error


def _keep_divisors(
    domains: dict[str, Domain], baseline: Mapping[str, KnobValue], refused: dict[str, str]
) -> None:
    """Leave the accumulation steps and ranks into which the program's own batch can be cut."""
    whole = global_batch(baseline)
    for name in ("accumulation_steps", "world_size"):
        if name in domains:
            counts = domains[name].values
            fitting = (n for n in counts if whole is not None and whole % int(n) == 0)
            domains[name] = Domain(tuple(fitting) or (baseline[name],))
            if len(domains[name].values) == 1:
                del domains[name]
                refused[name] = f"{baseline[name]} is the only value that keeps the global batch"


def _most_samples(domains: Mapping[str, Domain], baseline: Mapping[str, KnobValue]) -> int | None:
    """As many as the largest batch offered, and MAX_GROWTH times the program's own in any case.

    And as many as all ranks have, each with the program's own.
    """
    own = global_batch(baseline)
    if own is None:
        return None
    sizes = domains["batch_size"].values if "batch_size" in domains else ()
    ranks = domains["world_size"].values if "world_size" in domains else (1,)
    return max(MAX_GROWTH * own, own * max(map(int, ranks)), *map(int, sizes))


def _first(profile: Profile) -> set[str]:
    """Knobs that come before the sampler's: several GPUs gain more than anything on one."""
    return {"strategy", "world_size"} if profile.device == "cuda" else set()


def _own_flag(name: str, profile: Profile) -> Flag | None:
    """The flag or keyword that this knob is, None for other knobs."""
    if name.startswith(("-", KEYWORD)):
        return find(profile.flags, name) or Flag(name)
    return None


def _flag_for(knob: Knob, profile: Profile) -> Flag | None:
    """The flag of the program's own that means this knob."""
    return next((flag for flag in profile.flags if flag.words & set(knob.flag_names)), None)
