"""``SearchSpace``: which knobs are searched with which values, as the user wants it.

Its ``resolve()`` asks every knob what it offers for one program on one machine and returns a
``ResolvedSpace``, which holds the configs that the search can measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from autotune.errors import UsageError
from autotune.knobs import Knob, Scope, parse_value, registry, unknown_knob
from autotune.knobs.base import Here
from autotune.knobs.space.options import VARIABLE
from autotune.knobs.torch_flags import KEEPS_KERNEL
from autotune.machine.hardware import Hardware
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered, parts_of, ranks_in
from autotune.program.flags import KEYWORD, Flag, find
from autotune.program.lr import PARTS, LrRule, batch_growth, batch_parts, global_batch, rule_for
from autotune.program.may_change import MayChange
from autotune.program.profile import Profile

# How far a scaled learning rate holds depends on model and data (source: knobs/batch_size.py).
MAX_GROWTH = 32
MAX_GROWTH_BY_STEPS = 8  # where the program makes a fixed number of steps
# What every config but the program's own has, unless the user says otherwise. Configs that take
# turns share a process, and what one has freed would be kept for another (``inside/malloc.py``): so
# all of them keep it, also in the training to come.
KEEPS = "keep_freed_memory"
HELD: Mapping[str, KnobValue] = {KEEPS: True}
SET = "--set"  # the option and the argument by which users give values


@dataclass(frozen=True)
class SearchSpace:
    """What the user wants searched, before the machine and the program are known.

    Attributes:
        name: Of its file, without the extension.
        knobs: Candidate values per knob; None uses the values that the knob itself offers.
        fixed: Knobs held at one value in every config except the baseline.
        requested: Knobs that the user named in an option such as ``--tune``. It is an error if one
            of them cannot act.
        max_global_batch: Largest number of samples per optimizer step; None allows 32 times the
            program's number, and more if a batch size or rank count on offer needs it.
        uses_flags: Knobs that refuse may act through the program's own flags instead, whatever the
            reason, and are tried before others (``--use-flags``). Without it, flags are used where
            autotune only lacks another way.
    """

    name: str
    knobs: Mapping[str, tuple[KnobValue, ...] | None]
    fixed: Mapping[str, KnobValue] = field(default_factory=dict)
    requested: frozenset[str] = frozenset()
    keeps_global_batch: bool = False
    max_global_batch: int | None = None
    uses_flags: bool = False

    def tune(self, names: Iterable[str]) -> SearchSpace:
        """Return a space of these knobs only, with the values that this space gives them."""
        names = list(names)
        check_names(names, "--tune")
        return replace(
            self,
            knobs={name: self.knobs.get(name) for name in names},
            fixed={k: v for k, v in self.fixed.items() if k not in names},
            requested=self.requested | frozenset(names),
        )

    def set(self, values: Mapping[str, object], *, has_keywords: bool = False) -> SearchSpace:
        """Return this space with the user's values: one holds a setting fixed, several are tried.

        A setting that the space did not contain is added.

        Args:
            values: By setting, ``--flag`` of the program, keyword of its function or
                ``env:VARIABLE``: a value, or a list of them.
            has_keywords: Whether the program is a function: a name that is no setting is then one
                of its keywords.
        """
        given = {
            _named(name, has_keywords=has_keywords): list(_listed(raw))
            for name, raw in values.items()
        }
        if empty := [name for name, its in given.items() if not its]:
            raise UsageError(f"{SET} {empty[0]} has no value: give one, or several.")
        several = {name: its for name, its in given.items() if len(its) > 1}
        single = {name: its[0] for name, its in given.items() if len(its) == 1}
        return self.with_values(several).fix(single)

    def fix(self, settings: Mapping[str, object]) -> SearchSpace:
        """Return this space with some knobs held at a value."""
        check_names(settings, SET)
        fixed = {knob: parse_value(knob, raw, SET) for knob, raw in settings.items()}
        return replace(
            self,
            knobs={k: v for k, v in self.knobs.items() if k not in fixed},
            fixed={**self.fixed, **fixed},
            requested=self.requested | frozenset(fixed),
        )

    def with_values(self, values: Mapping[str, Iterable[object]]) -> SearchSpace:
        """Return this space with the user's candidate values for some knobs.

        A knob that the space did not contain is added, and a fixed one becomes free.
        """
        check_names(values, SET)
        given = {
            knob: tuple(dict.fromkeys(parse_value(knob, raw, SET) for raw in raws))
            for knob, raws in values.items()
        }
        return replace(
            self,
            knobs={**self.knobs, **given},
            fixed={k: v for k, v in self.fixed.items() if k not in given},
            requested=self.requested | frozenset(given),
        )

    def keep_global_batch(self) -> SearchSpace:
        """Return this space with the same number of samples per optimizer step as in the program.

        The batch size is then not searched: it follows from ``accumulation_steps`` and ``devices``.
        """
        if "batch_size" in self.requested:
            raise UsageError(
                "You named batch_size, but --keep-global-batch keeps the samples per step. Drop "
                "one of the two."
            )
        return replace(self, keeps_global_batch=True)

    def resolve(
        self, hardware: Hardware, profile: Profile, may_change: MayChange = MayChange.BATCH
    ) -> ResolvedSpace:
        """Return what can be searched for this program on this machine.

        Args:
            may_change: What a config may change of the training. Larger batches are tried where
                they may not be recommended, to tell what they would gain.

        Raises:
            UsageError: A requested knob cannot act here, or may not. The message gives the reason
                for each.
        """
        domains: dict[str, Domain] = {}
        refused: dict[str, str] = {}
        baseline: dict[str, KnobValue] = {}
        flags: dict[str, Flag] = {}
        # Keeping the global batch needs the program's batch size, even if the space lacks the knob.
        # Ranks in the place of replicas keep it.
        keeps = self.keeps_global_batch or profile.is_data_parallel
        needed = ["batch_size"] if keeps else []
        held = self._held(hardware, profile)
        for name in dict.fromkeys([*held, *self.knobs, *needed]):
            given = (held[name],) if name in held else self.knobs.get(name)
            offer = self._offer(registry()[name], given, Here(hardware, profile))
            if isinstance(offer, NotOffered):
                refused[name] = offer.reason
                continue
            baseline[name] = offer.own
            if not self._may(name, may_change):
                refused[name] = f"only with --may-change {registry()[name].changes}"
                continue
            if offer.flag is not None:
                flags[name] = offer.flag
            if name in held:
                continue
            domain = offer.domain.including(offer.own)
            if name == "batch_size" and (self.keeps_global_batch or name not in self.knobs):
                refused[name] = "the global batch stays the same"
            elif len(domain.values) > 1:
                domains[name] = domain
            else:
                refused[name] = domain.alone or f"{baseline[name]} is the only value that fits here"
        if self.keeps_global_batch:
            _keep_divisors(domains, baseline, refused)
        if unmet := [f"  {n}: {refused[n]}" for n in sorted(self.requested & refused.keys())]:
            raise UsageError(
                "These settings cannot act here:\n" + "\n".join(unmet) + "\nLeave them out."
            )
        scope = {n: registry()[n].scope for n in baseline}
        # The program reads these values once, while it starts, so changing them needs a new start.
        from_start = {*profile.config_reads, *flags}
        restart = frozenset(n for n in scope if scope[n] is Scope.RESTART or n in from_start)
        # several GPUs gain more than any setting on one
        first = {"devices"} if profile.device == "cuda" else set()
        return ResolvedSpace(
            domains=domains,
            fixed={n: v for n, v in held.items() if n in baseline and n not in refused},
            baseline=Config(baseline),
            refused=refused,
            restart=restart,
            keeps_global_batch=self.keeps_global_batch,
            max_global_batch=self.max_global_batch or _most_samples(domains, baseline, profile),
            flags=flags,
            requested=self.requested,
            asked=restart & (self.requested | (flags.keys() if self.uses_flags else set()) | first),
            defers_growth=may_change is MayChange.ROUNDING,
            may_change=may_change,
        )

    def _may(self, name: str, may_change: MayChange) -> bool:
        # Who names a setting has decided, unless nothing may change
        is_bound = may_change is MayChange.NOTHING
        is_tried = name in PARTS or name in self._named
        return may_change.allows(registry()[name].changes) or (is_tried and not is_bound)

    @property
    def _named(self) -> frozenset[str]:
        return self.requested | self.fixed.keys() | {n for n, its in self.knobs.items() if its}

    def _held(self, hardware: Hardware, profile: Profile) -> dict[str, KnobValue]:
        """Return what every config but the program's has: what acts of HELD, and the fixed."""
        here = Here(hardware, profile)
        offers = {name: registry()[name].domain(here) for name in HELD.keys() - self.knobs.keys()}
        ours = {n: HELD[n] for n, offer in offers.items() if isinstance(offer, Domain)}
        return {**ours, **self.fixed}

    def _offer(
        self, knob: Knob, given: tuple[KnobValue, ...] | None, here: Here
    ) -> _Offer | NotOffered:
        """Return the values that a knob has here, or why it cannot act.

        The first source that applies decides: the knob's domain, the value that the program reads
        from its ``config`` parameter, the domain for knobs named by the user, the program's flag.
        Values that the user *gave* replace those, if the program can use all of them.
        """
        profile = here.profile
        domain, flag = knob.domain(here), None
        if knob.name.startswith(("-", KEYWORD)):  # it stands for a flag or a keyword
            flag = find(profile.flags, knob.name) or Flag(knob.name)
        own = profile.config_reads.get(knob.name)
        # The program takes the value from its config, so no seam is needed. Other values must come
        # from the user.
        if isinstance(domain, NotOffered) and own is not None:
            domain = Domain((own,))
        # --keep-global-batch names the factors of the global batch, too: the number of samples per
        # step then stays the same.
        named = self._named | set(PARTS if self.keeps_global_batch else ())
        if isinstance(domain, NotOffered) and domain.by_name is not None and knob.name in named:
            domain = domain.by_name
        if isinstance(domain, NotOffered) and (
            self.uses_flags or _is_for_flags(knob, domain, profile)
        ):
            means = (flag for flag in profile.flags if flag.words & set(knob.flag_names))
            flag = next(means, None)
            domain = (flag and knob.flag_domain(flag, here)) or domain
        if isinstance(domain, NotOffered):
            return domain
        if own is None:
            # A ProgramFlag is named by a spelling of its flag and reads its own value in current().
            means_knob = flag is not None and knob.name not in flag.spellings
            own = knob.parse_flag(flag) if flag and means_knob else knob.current(profile)
        try:
            own = knob.parse(own)
        except ValueError as error:
            return NotOffered(f"the program's own value does not fit: the knob {error}")
        cannot = (knob.refusal(value, here) for value in given or ())
        if reason := next(filter(None, cannot), None):
            return NotOffered(reason)
        return _Offer(Domain(given) if given else domain, own, flag)


@dataclass(frozen=True)
class _Offer:
    """What one knob offers: values worth trying, the program's own value, and the flag to use.

    The flag is None for knobs that act through the seams.
    """

    domain: Domain
    own: KnobValue
    flag: Flag | None


@dataclass(frozen=True)
class ResolvedSpace:
    """The configs that can be measured for one program on one machine.

    Attributes:
        domains: Candidate values of each free knob, including the baseline's value.
        fixed: Knobs held at one value in every config except the baseline.
        refused: Knobs of the space that are not searched, with the reasons as clauses.
        restart: Knobs whose change needs a fresh process.
        max_global_batch: Samples per optimizer step; None if the batch size is not known.
        flags: The program's own flags through which knobs act, by the names of the knobs.
        defers_growth: Configs with another global batch that the user has not named may not be
            recommended, because what they learn cannot be checked; they are tried late, to tell
            what they would gain.
        asked: Restart knobs that are tried before the other restart knobs: those that the user
            named or that act through flags and, on CUDA, ``devices``.
        may_change: What a config may change of the training.
    """

    domains: Mapping[str, Domain]
    fixed: Mapping[str, KnobValue]
    baseline: Config
    refused: Mapping[str, str]
    restart: frozenset[str]
    keeps_global_batch: bool = False
    max_global_batch: int | None = None
    flags: Mapping[str, Flag] = field(default_factory=dict)
    requested: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()
    defers_growth: bool = False
    may_change: MayChange = MayChange.BATCH

    @property
    def start(self) -> Config:
        """The baseline with the fixed values; the search starts from it."""
        return self.baseline.replace(**self.fixed)

    def canonical(self, config: Config) -> Config:
        """Return the config with idle knobs set to the baseline's values.

        Configs that act alike become equal, so they count as one trial. With a kept global batch,
        the batch size is set to what the other factors leave of it.
        """
        idle = {
            n: self.baseline[n]
            for n in config
            if n in self.baseline and not registry()[n].is_active(config)
        }
        config = config.replace(**idle)
        return self.with_batch_of(self.baseline, config) if self.keeps_global_batch else config

    def without(self, refused: Mapping[str, str]) -> ResolvedSpace:
        """Return the space without some knobs, and without those that act only with these."""
        left = {knob: domain for knob, domain in self.domains.items() if knob not in refused}
        before, now = (
            self.baseline.replace(**{knob: domain.values[-1] for knob, domain in domains.items()})
            for domains in (self.domains, left)
        )
        idle = {
            knob: f"it acts only with {' or '.join(refused)}"
            for knob in left
            if registry()[knob].is_active(before) and not registry()[knob].is_active(now)
        }
        return replace(
            self,
            domains={knob: domain for knob, domain in left.items() if knob not in idle},
            fixed={knob: value for knob, value in self.fixed.items() if knob not in refused},
            refused={**self.refused, **refused, **idle},
        )

    def defers(self, config: Config) -> bool:
        """Return whether a config may not be recommended because its global batch is another."""
        return self.defers_growth and self.grows(config) and not self.names_growth(config)

    def allowed(self, config: Config) -> Config:
        """Return the config, or one like it with the program's own batch where it is deferred.

        Values that the user fixed stay.
        """
        config = self.canonical(config)
        if not self.defers(config):
            return config
        return self.canonical(self.with_own_batch(config).replace(**self.fixed))

    def names_growth(self, config: Config) -> bool:
        """Return whether the user has named all that makes the batch of a config another one."""
        named = config.changes_from(self.baseline).keys() & self.named_parts
        others = config.replace(**{part: self.baseline[part] for part in named})
        return bool(named) and not self.grows(others)

    @property
    def named_parts(self) -> frozenset[str]:
        """The factors of the global batch that the user has named."""
        return frozenset(PARTS) & (self.requested | self.fixed.keys())

    def grows(self, config: Config) -> bool:
        """Return whether a config has another global batch than the program."""
        return batch_growth(self.baseline, config) != 1.0

    def with_own_batch(self, config: Config) -> Config:
        """Return the config with the program's own global batch.

        More ranks share it; where it cannot be shared evenly, they are left out.
        """
        own = {part: self.baseline[part] for part in PARTS if part in self.baseline}
        ranks = ranks_in(config) // ranks_in(self.baseline)
        share, rest = divmod(int(self.baseline.get("batch_size", 0)), max(1, ranks))
        if ranks > 1 and share and not rest:
            own |= {"devices": config["devices"], "batch_size": share}
        return self.canonical(config.replace(**own))

    @staticmethod
    def with_batch_of(other: Config, config: Config) -> Config:
        """Return the config with as many samples in a step as *other* has.

        It is returned as it is where its ranks cannot share them evenly.
        """
        others = math.prod({**batch_parts(config), "batch_size": 1}.values())
        share, rest = divmod(global_batch(other) or 0, others)
        return config if rest or not share else config.replace(batch_size=share)

    def with_smaller_batches(self, config: Config) -> list[Config]:
        """Return the config, and with each smaller batch on offer, down to the program's own."""
        sizes = self.domains["batch_size"].values if "batch_size" in self.domains else ()
        own, most = (int(one.get("batch_size", 0)) for one in (self.baseline, config))
        smaller = sorted((n for n in sizes if own <= int(n) < most), key=int, reverse=True)
        return [config, *(self.canonical(config.replace(batch_size=size)) for size in smaller)]

    def conflicts(self, config: Config) -> list[str]:
        """Return why the config cannot be measured, one sentence per reason; empty if it can.

        Besides the knobs' conflicts, the samples per optimizer step must be within the limit and,
        if the global batch is kept, equal to the program's.
        """
        found = [registry()[n].conflict(config) for n in config]
        is_traced = config.get("compile", "off") != "off"
        if is_traced and config.get("attention") != self.start.get("attention"):
            found.append(f"{KEEPS_KERNEL.capitalize()}.")
        samples = global_batch(config)
        if samples is not None and self.max_global_batch and samples > self.max_global_batch:
            found.append(
                f"A step of {samples} samples is more than --max-global-batch "
                f"({self.max_global_batch})."
            )
        whole = global_batch(self.baseline)
        if self.keeps_global_batch and whole is not None and samples != whole:
            found.append(
                f"The {whole} samples per step do not divide evenly by this config's ranks and "
                "accumulation steps."
            )
        return [sentence for sentence in found if sentence]

    def needs_restart(self, here: Config, there: Config) -> bool:
        """Return whether a change from one config to the other needs a fresh process."""
        return bool(self.restart & there.changes_from(here).keys())


def _named(name: str, *, has_keywords: bool) -> str:
    """Return the knob that a user's name means."""
    if name.startswith(VARIABLE):
        return f"${name.removeprefix(VARIABLE)}"
    return KEYWORD + name if has_keywords and name not in registry() else name


def _listed(raw: object) -> Iterable[object]:
    return raw if isinstance(raw, Iterable) and not isinstance(raw, str) else (raw,)


def check_names(names: Iterable[str], where: str) -> None:
    """Raise a ``UsageError`` with every name that is not a knob's, and the nearest known one."""
    if unknown := [name for name in names if name not in registry()]:
        raise UsageError("\n".join(f"{where}: {unknown_knob(name)}" for name in unknown))


def _keep_divisors(
    domains: dict[str, Domain], baseline: Mapping[str, KnobValue], refused: dict[str, str]
) -> None:
    """Remove accumulation steps and rank counts that do not divide the program's global batch."""
    whole = global_batch(baseline)
    for name in ("accumulation_steps", "devices"):
        if name in domains:
            fitting = (
                value
                for value in domains[name].values
                if whole is not None and whole % batch_parts({name: value})[name] == 0
            )
            domains[name] = Domain(tuple(fitting) or (baseline[name],))
            if len(domains[name].values) == 1:
                del domains[name]
                refused[name] = f"{baseline[name]} is the only value that keeps the global batch"


def _most_samples(
    domains: Mapping[str, Domain], baseline: Mapping[str, KnobValue], profile: Profile
) -> int | None:
    """Return the default limit of samples per optimizer step; None if the batch is unknown."""
    growth = MAX_GROWTH_BY_STEPS if profile.loop.length.bounded_by_steps else MAX_GROWTH
    own = global_batch(baseline)
    if own is None:
        return None
    sizes = domains["batch_size"].values if "batch_size" in domains else ()
    ranks = domains["devices"].values if "devices" in domains else ("single",)
    most_ranks = max(parts_of(value)[1] for value in ranks)
    return max(growth * own, own * most_ranks, *map(int, sizes))


def _is_for_flags(knob: Knob, refused: NotOffered, profile: Profile) -> bool:
    """Return whether a flag may set a knob that is not offered, though nobody asked for flags.

    A flag of the batch must leave the training sound: the number of steps is not fixed, and the
    learning rate can follow. By how much it must follow depends on whether the loss is a sum, which
    a process that starts with the new batch does not show; optimizers whose rate is scaled by the
    square root do not depend on that. And whether the program scales its rate itself shows only in
    a rate that is not set by hand later.
    """
    if knob.name not in PARTS:
        return refused.is_unreached
    can_follow = profile.without_optimizer("") is None and all(
        rule_for(optimizer.families) is LrRule.SQRT and all(optimizer.initial_lrs or optimizer.lrs)
        for optimizer in profile.optimizers
    )
    return refused.is_unreached and can_follow and not profile.loop.length.bounded_by_steps
