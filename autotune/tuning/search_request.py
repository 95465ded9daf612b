"""SearchRequest: what a user wants searched; the one place where options of a search are declared.

``autotune.search()`` takes the fields as arguments and ``autotune search`` as options; the help of
both and the pages of the documentation are made from them. ``SearchOptions`` is what the record
keeps of a request.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from autotune.errors import UsageError, named
from autotune.measurement.goal import Goal, Objective
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.lr import LrRule
from autotune.program.may_change import MayChange
from autotune.program.sharing_options import VARIABLE, SharingOptions
from autotune.sharing.address import Address
from autotune.sharing.proxy import LOOPBACK
from autotune.tuning.budget import parse_duration
from autotune.tuning.choosing.sampler import Sampler, make_sampler

if TYPE_CHECKING:
    from autotune.knobs.space.space import SearchSpace
    from autotune.program.program import Program
    from autotune.results.output import Output
    from autotune.results.record import SearchOptions
    from autotune.tuning.events import Events

_T = TypeVar("_T")


@dataclass(frozen=True)
class Option:
    """How a field is described, and typed on the command line.

    Attributes:
        help: What it means, in both interfaces.
        typed: What the command line takes: ``str``, ``int``, ``float``, ``bool``, ``Path`` or a
            list; None keeps the field out of it.
        words: The option, if it is not ``--`` and the field's name.
        parse: Name of the function of ``knobs.space.options`` that makes the field's value of what
            was typed; empty for none.
        offers: What Tab offers: words, or the name of a function of ``cli.completion``.
        panel: Heading below which the help lists it; empty for the first one.
        least: The smallest number that it takes.
        hidden: Whether the help leaves it out, because it is rarely typed.
    """

    help: str
    typed: Any = None
    words: tuple[str, ...] = ()
    parse: str = ""
    offers: Sequence[str] | str = ()
    panel: str = ""
    least: int | None = None
    hidden: bool = False


def option(default: _T, help_: str, typed: Any = None, *words: str, **more: Any) -> _T:
    """Declare a field with its default; for the rest see ``Option``."""
    described = {"option": Option(help_, typed, words, **more)}
    return field(default=default, metadata=described)


def described(request: type) -> dict[str, Option]:
    """Return how the fields of a class are described, in order."""
    return {one.name: one.metadata["option"] for one in fields(request)}


LEARNING, VALUES, GOAL, FILES = "Batch and learning", "Values", "Goal", "Files"
MACHINES = "Several machines"


# Arguments of earlier versions: what to type now, on the command line and in Python
GONE = {
    "accept_learning_change": ("--may-change any", 'may_change="any"'),
    "allow_side_effects": ("--fence guard", 'fence=FenceOptions(FenceKind("guard"))'),
    "arg": ("--set=--FLAG=VALUE,VALUE", 'set={"--FLAG": [value, value]}'),
    "check_learning": ("--may-change batch", 'may_change="batch"'),
    "env": ("--set env:NAME=VALUE,VALUE", 'set={"env:NAME": [value, value]}'),
    "fix": ("--set NAME=VALUE", 'set={"NAME": value}'),
    "values": ("--set NAME=VALUE,VALUE", 'set={"NAME": [value, value]}'),
}


def refuse_gone(arguments: Collection[str]) -> None:
    """Refuse arguments of earlier versions, each with what to write now; else do nothing.

    Raises:
        UsageError: One of them is such an argument.
    """
    if gone := [f"{name}=… is now {GONE[name][1]}." for name in arguments if name in GONE]:
        raise UsageError("\n".join(gone))


@dataclass(frozen=True)
class SearchRequest:
    """The arguments of ``autotune.search()``, as they were given.

    ``space_searched()`` and ``options()`` check them.
    """

    program: str | os.PathLike[str] | Callable[..., Any] | Program | None = option(
        None,
        'Path of a script, "file.py:function", "module:function", or a function. A function with a '
        "parameter named config receives a Config; the values it reads from that are applied by "
        "the function alone.",
    )
    _: KW_ONLY
    command: str | Sequence[str] | None = option(
        None,
        "The complete command line that starts the program, instead of program: a list such as "
        '["torchrun", "--nproc-per-node", "2", "train.py"], or text that is split as a shell '
        "would.",
    )
    args: Sequence[str] = option((), "The program's arguments.")
    budget: str | float = option(
        "3m", "Wall time, confirmation included: 90s, 3m, 1h30m. A plain number is seconds.", str
    )
    tune: Iterable[str] | None = option(
        None,
        "Search only these settings: a,b. Repeatable.",
        list[str],
        parse="names",
        offers="knob_list",
    )
    may_change: str = option(
        "rounding",
        "What may change: nothing, rounding, batch or any. nothing keeps losses equal bit for bit; "
        "rounding, the default, keeps samples and step size; batch also makes other steps, which "
        "were seen to teach as much; any is not checked.",
        str,
        offers=[*MayChange],
    )
    output: str | os.PathLike[str] | Output | None = option(
        None, "Where to write best.yaml in addition to the search's folder; None writes no copy."
    )
    force: bool = option(
        False, "Replace the file that --output names, whatever it is.", bool, hidden=True
    )
    max_memory: str | float | None = option(
        None, "Share of the memory that a config may use: 90%.", str
    )
    keep_global_batch: bool = option(
        False, "Try no other samples per step or learning rate.", bool, panel=LEARNING
    )
    max_global_batch: int | None = option(
        None, "Maximum samples per step. Default: at least 32 times yours.", int, panel=LEARNING
    )
    lr_rule: str | None = option(
        None,
        "How the rate follows the batch: linear, sqrt or none. Default: chosen for each optimizer "
        "by its class.",
        str,
        offers=[rule for rule in LrRule if rule is not LrRule.AUTO],
        panel=LEARNING,
    )
    space: str | SearchSpace = option(
        "default", "Built-in search space, or a YAML file.", str, offers="spaces", panel=VALUES
    )
    set: Mapping[str, object] | None = option(
        None,
        "NAME=v1,v2: candidates; one value holds it fixed. NAME is a setting, a --flag of the "
        "program (--set=--hidden=128,256), a keyword of the function, or env:VARIABLE. In Python a "
        "list or one value. Repeatable.",
        list[str],
        parse="chosen",
        offers="setting",
        panel=VALUES,
    )
    use_flags: bool = option(
        False,
        "Set what autotune cannot by the program's own flags. They are tried early; without it, "
        "flags are used only where autotune lacks another way.",
        bool,
        panel=VALUES,
    )
    objective: str = option(
        "throughput",
        "What to improve: throughput or memory. Also step-time or energy.",
        str,
        offers=[*Objective],
        panel=GOAL,
    )
    for_hours: float | None = option(
        None,
        "Hours that the training takes, so that compiling counts.",
        float,
        panel=GOAL,
    )
    name: str | None = option(
        None,
        "Name of the folder in .autotune/. With a storage, it is the name of the study, the same "
        "on all machines.",
        str,
        panel=FILES,
    )
    ranks: int | None = option(
        None,
        "Start this number of ranks on this machine, as torchrun does.",
        int,
        "--nproc-per-node",
        hidden=True,
        least=1,
    )
    sampler: str = option(
        "autotune",
        "What chooses configs: autotune, or Optuna's tpe, gp or random.",
        str,
        offers=[*Sampler],
        hidden=True,
    )
    seed: int = option(0, "Seed of the sampler.", int, hidden=True)
    fence: FenceOptions = option(
        STRONGEST,
        "What keeps trials from changing files; by default the strongest that works here.",
    )
    storage: str | None = option(
        None,
        "Join a study: postgresql://HOST/DATABASE or grpc://HOST:PORT. What its members measure "
        "counts for all of them; --name tells it from others there. A password stands in the "
        "variable AUTOTUNE_STORAGE, which holds the whole URL, or in the file of PGPASSFILE.",
    )
    serve: str | None = option(
        None,
        "Serve the study to others at HOST:PORT, or to this machine at PORT. The study is a file "
        "in this search's folder, whoever reaches the port can write to it, and it is served until "
        "the last member has left.",
    )
    events: Events | None = option(
        None,
        "Receives what happens during the search, as the console does on the command line. None "
        "logs phases, better configs and warnings under the name autotune.",
    )

    def space_searched(self) -> SearchSpace:
        """Return the space with everything that the user narrowed or added.

        Raises:
            UsageError: a setting or a value does not exist, or two wishes contradict each other.
        """
        from autotune.knobs.space import spacefile

        space = spacefile.load(self.space) if isinstance(self.space, str) else self.space
        if self.tune is not None:
            space = space.tune(self.tune)
        if self.set:
            space = space.set(self.set, has_keywords=self._is_function)
        if self.keep_global_batch:
            space = space.keep_global_batch()
        most = self.max_global_batch
        if most is not None and most < 1:
            raise UsageError(f"--max-global-batch takes a number of samples, not {most}.")
        uses_flags = self.use_flags or space.uses_flags
        return replace(space, uses_flags=uses_flags, max_global_batch=most)

    @property
    def _is_function(self) -> bool:
        """Whether the program is a function, whose keywords may be named."""
        function = getattr(self.program, "function", None)  # of a Program that was read
        return callable(self.program) or bool(function)

    def options(self) -> SearchOptions:
        """Return budget, learning-rate rule, sampler, seed, fence, goal and shared study.

        Raises:
            UsageError: the budget cannot be read as a duration, a limit makes no sense, or there is
                no such rule, sampler, objective or storage.
        """
        from autotune.results.record import SearchOptions

        # It fails now, not after the baseline
        make_sampler(named("sampler", self.sampler, {str(one): one for one in Sampler}), self.seed)
        if self.for_hours is not None and self.for_hours <= 0:
            raise UsageError(f"--for-hours takes hours of training, not {self.for_hours:g}.")
        objective = named("objective", self.objective, {str(one): one for one in Objective})
        rule, rules = self.lr_rule, {str(one): one for one in LrRule}
        return SearchOptions(
            budget_s=parse_duration(str(self.budget)),
            lr_rule=None if rule is None else named("learning-rate rule", rule, rules),
            seed=self.seed,
            sampler=self.sampler,
            fence=self.fence,
            goal=Goal(objective, share_of(self.max_memory), self.for_hours),
            may_change=level_named(self.may_change),
            sharing=sharing_of(self.storage, self.serve, self.name),
        )


def sharing_of(storage: str | None, serve: str | None, name: str | None) -> SharingOptions | None:
    """Return which study of several machines is meant; None if none is.

    Without a storage, that of the variable AUTOTUNE_STORAGE is meant, if it is set.

    Raises:
        UsageError: It is no storage, it has no name, or it is both served and elsewhere.
    """
    if storage is not None and serve is not None:
        raise UsageError("--storage is where a study is, and --serve makes one here: type one.")
    if serve is not None:
        shown = Address.parse(served_url(serve)).shown
    else:
        typed = None if storage is None else Address.parse(storage)
        if (address := typed or Address.of_environment()) is None:
            return None
        shown = address.shown
    if name is None:
        said = f"{VARIABLE} is set, so this search is shared" if storage is serve else shown
        raise UsageError(f"{said}: add --name NAME, the same for all who search together.")
    return SharingOptions(shown, name, serves=serve is not None)


def served_url(serve: str) -> str:
    """Return the URL of a study that is served at ``HOST:PORT``, or at ``PORT`` of this machine.

    Raises:
        UsageError: It is neither.
    """
    host, _, port = serve.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"--serve takes HOST:PORT, or a port of this machine, not '{serve}'.")
    return f"grpc://{host or LOOPBACK}:{port}"


def level_named(name: str) -> MayChange:
    """Return what may change, as users name it.

    Raises:
        UsageError: There is no such level.
    """
    return named("level", name, {str(one): one for one in MayChange})


def share_of(memory: str | float | None) -> float | None:
    """Return a share of the memory, 0 to 1, which may be given as text such as ``"90%"``.

    Raises:
        UsageError: It is not a share.
    """
    if memory is None:
        return None
    text = str(memory).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise UsageError(f"'{memory}' is not a share of the memory. Write for example 90% or 0.9.")
    return share
