"""What the code of a dataset's items reads: by the names in it, without running it."""

from __future__ import annotations

import dis
import sys
from collections.abc import Collection, Iterator
from functools import lru_cache
from types import CodeType, FunctionType

READS_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
READS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", *READS_GLOBALS}


@lru_cache(maxsize=1024)
def names_read(code: CodeType) -> frozenset[str]:
    """Return the names that code reads, other than to count them up (``self.hits += 1``).

    Texts that are names are among them: ``getattr(self, "level")``.
    """
    return frozenset(_names(code, counted=False))


@lru_cache(maxsize=1024)
def names_counted(code: CodeType) -> frozenset[str]:
    """Return the attributes that code counts up."""
    return frozenset(_names(code, counted=True))


@lru_cache(maxsize=1024)
def globals_read(code: CodeType) -> frozenset[str]:
    """Return the names that code reads as globals: the x of ``self.x`` is none of them."""
    own = {i.argval for i in dis.get_instructions(code) if i.opname in READS_GLOBALS}
    inner = (globals_read(c) for c in code.co_consts if isinstance(c, CodeType))
    return frozenset(own).union(*inner)


def _names(code: CodeType, *, counted: bool) -> Iterator[str]:
    before = None
    for instruction in dis.get_instructions(code):
        counts_up = before is not None and before.opname == "COPY" and before.arg == 1
        if instruction.opname in READS and counts_up is counted:
            yield str(instruction.argval)
        before = instruction
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant, counted=counted)
        elif isinstance(constant, str) and constant.isidentifier() and not counted:
            yield constant


def own_code(thing: type | FunctionType, libraries: Collection[str]) -> bool:
    """Tell whether a class or function is neither Python's nor one of these libraries'."""
    root = str(getattr(thing, "__module__", None)).partition(".")[0]
    return root not in libraries and root not in sys.stdlib_module_names
