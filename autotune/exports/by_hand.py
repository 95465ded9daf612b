"""By hand: a config as a diff of the user's own program.

Settings become arguments of the calls that they are about, and lines next to these. Which call that
is follows from what the search recorded of the program: a loader that trains is not one that was
built otherwise, an optimizer has its class. Nothing is guessed: where none or several calls may be
meant, where a file has changed since the search, or where a line would say another thing than
``autotune run`` does, the setting stands among the others, with its line and where that goes.

Refused: editing the file, as who applies the diff has read it; and placing what is written at many
places, such as copies of batches, or a learning rate, which schedules and groups set, too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.exports.formats import Settings, format_named, merge
from autotune.exports.source import Edit, Source, Unplaced, assigned, called, diff, dotted
from autotune.files import access
from autotune.knobs import registry
from autotune.program.config import KnobValue
from autotune.program.flags import KEYWORD
from autotune.program.profile import LoaderFacts
from autotune.program.sources import digest_of
from autotune.results.result import SearchResult

MOST_BYTES = 1 << 20  # of a file that people write
# Parameters of torch.utils.data.DataLoader that may be given by their place
LOADER_PLACES = (
    *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn"),
    *("pin_memory", "drop_last", "timeout", "worker_init_fn", "multiprocessing_context"),
)
# Calls and attributes that a flag of torch is set by, if not by what this writes
FLAGS = ("set_num_threads", "set_flush_denormal", "set_float32_matmul_precision", "benchmark")
ALSO = {"set_float32_matmul_precision": "allow_tf32"}
# Of files that matter here
WORDS = {"DataLoader", "backward", *FLAGS, *ALSO.values()}
# What a line can be added to; anything else that is written has to go
ADDABLE = {"compile": {"off"}, "precision": {"fp32", "tf32", "medium"}}
SEVERAL = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
TRAINERS = {"lightning": "lightning", "transformers": "hf"}  # with the format that sets them
Found = tuple[Source, ast.Call]
Placed = tuple[Source, list[Edit]]


@dataclass(frozen=True)
class Rest:
    """A part of a config that the diff does not hold.

    Attributes:
        line: What to write, or to type.
        where: Where that goes, or why nothing can be written, as a clause.
    """

    setting: str
    line: str
    where: str


@dataclass(frozen=True)
class ByHand:
    """How people write a config into their program.

    Attributes:
        folder: The name of that in which the diff applies.
        diff: A unified diff; empty if nothing could be placed.
        notes: What it says otherwise than ``autotune run`` does.
    """

    folder: str
    diff: str
    rest: tuple[Rest, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Program:
    """The user's files, and what the search knows of them; what is not certain is ``Unplaced``."""

    result: SearchResult
    sources: Sequence[Source]  # the script first
    why_none: str  # if there are none

    def calls(self, name: str) -> list[Found]:
        return [(one, call) for one in self.sources for call in one.find(name)]

    @property
    def optimizer(self) -> Found:
        """The call that makes the only optimizer."""
        names = [one.name for one in self.result.applied.traits.optimizers]
        if len(names) != 1:
            raise Unplaced(f"the program has {len(names)} optimizers")
        return self._made(self.calls(names[0]), names[0])

    @property
    def loader(self) -> Found:
        """The call that makes the loader that trains."""
        facts = self.result.applied.traits.loader
        if facts is None:
            raise Unplaced("not exactly one DataLoader trains")
        for source in self.sources:
            for other in source.others_of("DataLoader"):
                raise Unplaced(f"DataLoader has another name at {source.place(other)}")
        able = [one for one in self.calls("DataLoader") if _may_be(facts, one[1])]
        return self._made(able, "DataLoader")

    @property
    def model(self) -> tuple[Source, ast.stmt, str]:
        """The statement that makes the optimizer, with the model's name."""
        source, call = self.optimizer
        names = {*_models(call)}
        if len(names) != 1 or not (model := names.pop()).removeprefix("self.").isidentifier():
            raise Unplaced("the optimizer is not made of one whole model's parameters()")
        return source, source.statement(call), model

    @property
    def backward(self) -> tuple[Source, ast.Expr, str]:
        """The statement ``loss.backward()``, with the loss's name."""
        source, call = _only(self.calls("backward"), "backward")
        statement, loss = source.parents[call], dotted(call.func).rpartition(".")[0]
        if not isinstance(statement, ast.Expr) or not loss.isidentifier():
            raise Unplaced(f"the loss at {source.place(call)} has no name")
        return source, statement, loss

    def _made(self, found: Sequence[Found], name: str) -> Found:
        """Return the only call that makes an object, which it makes once."""
        source, call = _only(found, name)
        if not self._is_made_once(source, call):
            raise Unplaced(f"the call of {name} at {source.place(call)} may make several")
        return source, call

    def _is_made_once(self, source: Source, call: ast.Call) -> bool:
        for node in source.around(call):
            match node:
                case ast.Assign(targets=[ast.Subscript()]) if source.loop(node):
                    return False
                case ast.FunctionDef():
                    return self._called(source, node) <= 1
            if isinstance(node, SEVERAL):
                return False
        return True

    def _called(self, source: Source, function: ast.FunctionDef) -> int:
        """Return how often a function is called: by its name, of its module, or as a method."""
        name, owner = function.name, source.parents[function]
        if isinstance(owner, ast.ClassDef):
            return len(self.calls(owner.name if name == "__init__" else name))
        names = {name, f"{Path(source.name).stem}.{name}"}
        return sum(dotted(call.func) in names for _, call in self.calls(name))


def _only(found: Sequence[Found], name: str) -> Found:
    if not found:
        raise Unplaced(f"no call of {name} was found that may be meant")
    if len(found) > 1:
        places = ", ".join(source.place(call) for source, call in found[:3])
        raise Unplaced(f"{len(found)} calls of {name} may be meant: {places}")
    return found[0]


def by_hand(result: SearchResult) -> ByHand:
    """Return how people write the recommended config into their program; nothing is written."""
    program = _program(result)
    settings, rest = _settings(result)
    placed, after, notes = list[Placed](), program.sources, list[str]()
    for name, what in settings.items():
        way = WAYS[name]
        try:
            found = _placed(program, name, what)
            # Together with those before, or else it collides with them
            after = _written(program.sources, [*placed, found])
        except Unplaced as why:
            where = "; ".join(filter(None, [way.where, str(why)]))
            rest.append(Rest(way.about, way.line(what), where))
        else:
            placed.append(found)
            notes += filter(None, [way.note])
    changed = "".join(map(diff, program.sources, after))
    return ByHand(Path(_folder(result)).name, changed, tuple(rest), tuple(notes))


def _placed(program: _Program, name: str, what: object) -> Placed:
    trainer = TRAINERS.get(program.result.applied.traits.trainer)
    if trainer and name not in {"LOADER", "torch", "shell"}:
        raise Unplaced(f"the trainer has a setting for it: autotune export --to {trainer}")
    if not program.sources:
        raise Unplaced(program.why_none)
    return WAYS[name].place(program, what)


def _settings(result: SearchResult) -> tuple[Settings, list[Rest]]:
    """Return the changes as the snippet names them, and those that are no Python."""
    settings: Settings = {}
    rest = list[Rest]()
    factor = result.learning.lr_factor
    for setting, value in result.changes.items():
        answer = _answer(result, setting, value)
        if isinstance(answer, Rest):
            rest.append(answer)
        elif setting == "batch_size" and factor != 1.0:  # without its rate, another training
            rest.append(Rest(f"{setting}={value}", "", "together with the learning rate"))
        else:
            merge(settings, answer)
    if factor != 1.0:
        line = f"lr * {factor:.6g}"
        rest.append(Rest("learning rate", line, "where the optimizer or a schedule gets its rate"))
    return settings, rest


def _written(sources: Sequence[Source], placed: Sequence[Placed]) -> Sequence[Source]:
    """Return all sources with their edits."""
    return [one.edited([e for where, edits in placed if where is one for e in edits])
            for one in sources]  # fmt: skip


def _answer(result: SearchResult, setting: str, value: KnobValue) -> Settings | Rest:
    """Return what a setting is in Python, or what else is to be done about it."""
    traits, said = result.applied.traits, f"{setting}={value}"
    if setting.startswith("$"):
        return Rest(said, said[1:], "in front of the command")
    written = result.baseline.get(setting)
    if flag := traits.flags.get(setting):
        words = f"{flag.name} {registry()[setting].format_flag(value, flag)}"
        return Rest(said, words, "on the command line")
    if setting.startswith("-"):
        return Rest(said, f"{setting} {value}", "on the command line")
    if setting.startswith(KEYWORD) or setting in traits.program_knobs:
        return Rest(said, said.removeprefix(KEYWORD), "an argument of the program's own function")
    snippet = format_named("snippet")
    answer = snippet.answer(setting, value, "cpu" if traits.device == "cpu" else "gpu")
    if written not in ADDABLE.get(setting, {written}):
        answer = f"{setting}={written} is written in the program and has to go"
    elif not isinstance(answer, str):
        return answer
    is_known = {*snippet.by_value, *snippet.left_out} & {setting}
    return Rest(said, "", answer if is_known else "'autotune run' does it; it is no single line")


def _folder(result: SearchResult) -> str:
    program = result.head.program
    is_below = Path(program.source).is_relative_to(program.cwd)
    return program.cwd if is_below else str(Path(program.source).parent)


def _program(result: SearchResult) -> _Program:
    program = result.head.program
    if not program.source or program.source == ".":
        return _Program(result, (), "the function has no file")
    files = {program.source: program.fingerprint}
    files |= {} if result.facts is None else result.facts.files
    folder, found = Path(_folder(result)), list[Source]()
    told = {*WORDS, *(one.name for one in result.applied.traits.optimizers)}
    for path, digest in files.items():
        if Path(path).suffix == ".py" and Path(path).is_relative_to(folder):
            is_script = path == program.source
            source = _read(Path(path), digest, folder, {""} if is_script else told)
            if source is None and is_script:
                why = f"{program.file_name} is not as the search saw it, or no Python in UTF-8"
                return _Program(result, (), why)
            found += [] if source is None else [source]
    return _Program(result, tuple(found), "there is no Python file")


def _read(path: Path, digest: str, folder: Path, words: Collection[str]) -> Source | None:
    # What is shown is what was searched, and a record can only name what it knows
    if digest_of(path) != digest or path.stat().st_size > MOST_BYTES:
        return None
    try:
        with access.opened(path) as file:
            text = file.read().decode()
        is_of_use = any(word in text for word in words)  # reading all of a package takes seconds
        return Source(path.relative_to(folder).as_posix(), text) if is_of_use else None
    except (SyntaxError, ValueError, OSError, RecursionError):  # ValueError: no UTF-8
        return None


# --- where each kind of setting goes ----------------------------------------------------------


def _loader(program: _Program, values: Mapping[str, object]) -> Placed:
    source, call = program.loader
    given = _bound(call)
    if given is None:
        raise Unplaced(f"the call at {source.place(call)} takes * or ** arguments")
    code = _code(values)
    if values.get("num_workers") == 0:  # with which a DataLoader takes none of these
        alone = {"prefetch_factor": "None", "multiprocessing_context": "None", "timeout": "0"}
        code |= {name: none for name, none in alone.items() if name in given}
    if by_place := [name for name in code if name in LOADER_PLACES[: len(call.args)]]:
        raise Unplaced(f"{by_place[0]} is given by its place at {source.place(call)}")
    return source, [*source.with_arguments(call, code)]


def _optimizer(program: _Program, values: Mapping[str, object]) -> Placed:
    source, call = program.optimizer
    given = {one.arg for one in call.keywords}
    if None in given:
        raise Unplaced(f"the call at {source.place(call)} takes ** arguments")
    others = {"foreach", "fused"} & given  # of which torch takes one
    code = {**dict.fromkeys(others, "None"), **_code(values)}
    return source, [*source.with_arguments(call, code)]


def _before_optimizer(lines: Callable[..., str]) -> Callable[..., Placed]:
    def place(program: _Program, what: object) -> Placed:
        source, statement, model = program.model
        line = lines(model, what)
        needed = source.after_imports() if "torch." in line else []
        return source, [*needed, source.before(statement, line)]

    return place


def _autocast(program: _Program, dtype: str) -> Placed:
    if dtype == "torch.float16":
        raise Unplaced("float16 needs a torch.amp.GradScaler, too")
    if program.result.applied.traits.program_autocast:
        raise Unplaced("the program has an autocast of its own, which takes this dtype")
    source, backward, loss = program.backward
    block = source.block(backward)
    before = block[: block.index(backward)]
    models = {name for one in program.sources for name in _models(one.tree)}
    calls = [nth for nth, one in enumerate(before) if models & {*called(one)}]
    losses = [nth for nth, one in enumerate(before) if loss in {*assigned(one)}]
    if not losses or not calls or calls[0] > losses[-1]:
        raise Unplaced(f"no call of the model was found before {source.place(backward)}")
    device = program.result.applied.traits.device
    header = f'with torch.autocast("{device}", dtype={dtype}):'
    inner = source.within(before[calls[0] : losses[-1] + 1], header)
    return source, [*source.after_imports(), *inner]


def _flags(program: _Program, lines: Mapping[str, str]) -> Placed:
    for name in [one for one in FLAGS if any(f".{one}" in line for line in lines.values())]:
        for source in program.sources:
            for node in ast.walk(source.tree):
                is_set = isinstance(getattr(node, "ctx", None), ast.Store)
                match node:
                    case ast.Call(func=of) if dotted(of).endswith(name):
                        raise Unplaced(f"{source.place(node)} sets {name}, too")
                    case ast.Attribute(attr=of) if is_set and of in {name, ALSO.get(name)}:
                        raise Unplaced(f"{source.place(node)} sets {of}, too")
    source = program.sources[0]
    return source, source.after_imports(lines.values())


def _nowhere(*_: object) -> Placed:
    raise Unplaced  # what its line says is enough


@dataclass(frozen=True)
class Way:
    """How one kind of settings is written.

    Attributes:
        about: What it is called in a list.
        where: Where its line goes.
        note: What it says otherwise than ``autotune run`` does; empty if nothing.
    """

    place: Callable[..., Placed]
    about: str
    line: Callable[..., str]
    where: str
    note: str = ""


def _arguments(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={code}" for name, code in _code(values).items())


def _code(values: Mapping[str, object]) -> dict[str, str]:
    return {k: f'"{v}"' if isinstance(v, str) else repr(v) for k, v in values.items()}


# By the names that the snippet gives them
WAYS: Mapping[str, Way] = {
    "LOADER": Way(_loader, "the loader", _arguments, "in the DataLoader that trains"),
    "OPTIMIZER": Way(_optimizer, "the optimizer", _arguments, "among the optimizer's arguments"),
    "COMPILE": Way(
        _before_optimizer(lambda model, values: f"{model}.compile({_arguments(values)})"),
        "compile",
        lambda values: f"model.compile({_arguments(values)})",
        "before the training loop",
    ),
    "format": Way(
        _before_optimizer(lambda model, layout: f"{model}.to(memory_format={layout})"),
        "memory_format",
        lambda layout: f"model.to(memory_format={layout})",
        "before the optimizer is made",
    ),
    "autocast": Way(
        _autocast,
        "precision",
        lambda dtype: f"torch.autocast(device_type, dtype={dtype})",
        "around the model's call and its loss",
        "The diff computes the loss under autocast, too, as PyTorch's guide has it; "
        "'autotune run' gives the loss the model's outputs in float32.",
    ),
    "COPY": Way(_nowhere, "copies", _arguments, "where a batch is copied to the GPU"),
    "torch": Way(
        _flags,
        "flags of torch",
        lambda lines: "; ".join(lines.values()),
        "after the imports",
    ),
    "shell": Way(_nowhere, "the allocator", str, "in front of the command"),
}


# --- what code says ---------------------------------------------------------------------------


def _bound(call: ast.Call) -> dict[str, ast.expr] | None:
    """Return a loader's arguments by their names; None if some are not written there."""
    by_name = {one.arg: one.value for one in call.keywords if one.arg is not None}
    is_open = len(by_name) < len(call.keywords) or len(call.args) > len(LOADER_PLACES)
    if is_open or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    return {**dict(zip(LOADER_PLACES, call.args, strict=False)), **by_name}


def _may_be(facts: LoaderFacts, call: ast.Call) -> bool:
    """Return whether nothing that a call says in so many words speaks against it."""
    given = _bound(call)
    if given is None:
        return True
    defaults = {"num_workers": 0, "pin_memory": False, "drop_last": False}
    if facts.batch_size is not None:
        defaults["batch_size"] = 1
    if not facts.iterable and not {"sampler", "batch_sampler"} & given.keys():
        defaults["shuffle"] = False
    seen = {**vars(facts), "shuffle": facts.sampler == "RandomSampler"}
    for name, default in defaults.items():
        match given.get(name, ast.Constant(default)):
            case ast.Constant(value=value) if bool(value) != bool(seen[name]):
                return False
            case ast.Constant(value=int(value)) if value != seen[name]:
                return False
    return True


def _models(node: ast.AST) -> Iterator[str]:
    """Yield what ``parameters()`` and ``train()`` are called of, as ``model``."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            of, _, method = dotted(one.func).rpartition(".")
            if of and method in {"parameters", "named_parameters", "train"}:
                yield of
