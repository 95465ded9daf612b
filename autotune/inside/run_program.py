"""Run the user's program in this process as Python would: a script, a module or a function.

``sys.argv``, ``sys.path``, ``__main__`` and the warning filters are set as the user's command would
set them, so that the program cannot tell the difference.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import pickle
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, assert_never

from autotune.errors import RunDirectoryError
from autotune.inside.code.frames import note_program
from autotune.knobs import registry
from autotune.program.config import Config, KnobValue
from autotune.program.program import Program, ProgramKind, fingerprint_of


@dataclass(frozen=True, eq=False)
class RecordedConfig(Config):
    """A config that records which knobs the program ``reads`` through its parameter ``config``.

    The program applies these itself, so autotune leaves them alone.
    """

    reads: dict[str, KnobValue] = field(default_factory=dict)

    def __getitem__(self, knob: str) -> KnobValue:
        if knob not in self.values_by_knob:
            raise KeyError(
                f"{knob}: the baseline has no value for it. "
                f"Read it with the program's own value as default: config.get({knob!r}, ...)"
            )
        self._note(knob, self.values_by_knob[knob])
        return self.values_by_knob[knob]

    def get(self, knob: str, default: Any = None) -> Any:
        """Return the value of a knob, or *default* if the config has no value for it.

        The default is recorded as a read too: it is the program's own value, and so the baseline's.
        """
        if knob in self.values_by_knob:
            return self[knob]
        self._note(knob, default)
        return default

    def _note(self, knob: str, value: object) -> None:
        if knob in registry() and isinstance(value, KnobValue):
            self.reads[knob] = value


SeeKeywords = Callable[[inspect.Signature, dict[str, KnobValue]], None]


def run(
    program: Program, config: RecordedConfig, see_keywords: SeeKeywords = lambda *_: None
) -> None:
    """Run a program to its end in this process; its exceptions pass through.

    Args:
        config: Passed to a function that has a parameter named ``config``.
        see_keywords: Called before a function runs, with its signature and keyword arguments.
    """
    sys.argv = [program.path_typed or program.target, *program.args]
    if program.import_root:
        sys.path.insert(0, program.import_root)
    note_program(program.source)
    sys.warnoptions.extend(program.warning_filters)
    warnings._processoptions(program.warning_filters)  # type: ignore[attr-defined]  # noqa: SLF001 - as Python does
    match program.kind:
        case ProgramKind.SCRIPT:
            _run_script(Path(program.cwd), sys.argv[0])
        case ProgramKind.MODULE:
            _new_main()
            sys.argv[0] = "-m"  # as Python has it until it has found the module's file
            # The private function that Python itself calls for -m
            runpy._run_module_as_main(program.target)  # type: ignore[attr-defined]  # noqa: SLF001
        case ProgramKind.FILE_FUNCTION:
            function = _from_file(Path(program.target), program.function)
            _call(function, program, config, see_keywords)
        case ProgramKind.MODULE_FUNCTION:
            module = importlib.import_module(program.target)
            _call(getattr(module, program.function), program, config, see_keywords)
        case ProgramKind.PICKLED_FUNCTION:
            content = Path(program.target).read_bytes()
            if fingerprint_of(content) != program.fingerprint:
                raise RunDirectoryError(
                    f"'{program.target}' is not what autotune wrote, so it is not run. Start a new "
                    "search, where nobody else may write."
                )
            function = pickle.loads(content)  # noqa: S301 - autotune wrote these bytes
            _call(function, program, config, see_keywords)
        case _:
            assert_never(program.kind)


def _run_script(cwd: Path, typed: str) -> None:
    """Execute a file as ``__main__``, as ``python FILE`` does.

    Python makes the path absolute but does not normalize it, so ``__file__`` is built in the same
    way. The module stays in ``sys.modules``, because workers with the start method ``spawn`` import
    the script by its name.
    """
    path = os.path.join(cwd, typed)  # noqa: PTH118 - a Path would normalise it
    main = _new_main()
    vars(main).update(
        __file__=path,
        __cached__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    exec(code, vars(main))  # noqa: S102 - the user's own program


def _new_main() -> ModuleType:
    main = ModuleType("__main__")
    vars(main)["__builtins__"] = __builtins__
    if "__annotations__" in vars(sys.modules["__main__"]):  # Python up to 3.13 always sets it
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    return main


def _from_file(path: Path, function: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, so that its classes can be pickled and dataclasses find the module.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    found: Callable[..., Any] = getattr(module, function)
    return found


def _call(
    function: Callable[..., Any],
    program: Program,
    config: RecordedConfig,
    see_keywords: SeeKeywords,
) -> None:
    signature = inspect.signature(function)
    see_keywords(signature, dict(program.keywords))
    keywords: dict[str, Any] = dict(program.keywords)
    if "config" in signature.parameters:
        keywords["config"] = config
    function(*program.args, **keywords)


@contextmanager
def own_tracebacks() -> Iterator[None]:
    """Let what ends the program be shown as without autotune, whose frames are above the program's.

    That is left to ``sys.excepthook``, as the program has set it until then.
    """
    try:
        yield
    except BaseException:
        shown_by = sys.excepthook

        def show(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
            own = own_frames(traceback)
            if own is traceback and isinstance(error, SyntaxError):  # the program did not begin
                own = None
            shown_by(kind, error.with_traceback(own), own)

        sys.excepthook = show
        raise


def own_frames(traceback: Any) -> Any:
    """Return the traceback from the user's first frame on, or unchanged if no frame is theirs."""
    package = str(Path(__file__).parent.parent) + os.sep
    first = traceback
    while first and first.tb_frame.f_code.co_filename.startswith((package, "<frozen")):
        first = first.tb_next
    return first or traceback
