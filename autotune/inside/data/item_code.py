"""Read from bytecode which names the code of a dataset's items uses, without running it.

Only state that this code reads can make items depend on it.
"""

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
    """Return the names of globals and attributes that code reads, including its inner functions.

    Strings that are identifiers are included, for ``getattr(self, "level")``. An attribute that is
    only counted up (``self.hits += 1``) is not, because items do not depend on it.
    """
    return frozenset(_names(code, counted=False))


@lru_cache(maxsize=1024)
def names_counted(code: CodeType) -> frozenset[str]:
    """Return the attributes that code counts up, such as ``hits`` in ``self.hits += 1``."""
    return frozenset(_names(code, counted=True))


@lru_cache(maxsize=1024)
def globals_read(code: CodeType) -> frozenset[str]:
    """Return the names that code and its inner functions read as globals.

    Attribute names are not among them: the ``x`` of ``self.x`` is not.
    """
    own = {i.argval for i in dis.get_instructions(code) if i.opname in READS_GLOBALS}
    inner = (globals_read(c) for c in code.co_consts if isinstance(c, CodeType))
    return frozenset(own).union(*inner)


def _names(code: CodeType, *, counted: bool) -> Iterator[str]:
    """Yield the names that code reads, or those that it counts up.

    An augmented assignment copies the object (``COPY 1``) right before it reads the attribute.
    """
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
    """Return whether a class or function belongs to neither Python nor one of *libraries*."""
    root = str(getattr(thing, "__module__", None)).partition(".")[0]
    return root not in libraries and root not in sys.stdlib_module_names
