"""Patch: a unified diff of the script, where the values to change are literals in its source.

Covered: options of the training DataLoader, and settings of torch that are one line after the
imports. Not covered: everything else, which is listed with the reason.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import UsageError
from autotune.program.config import KnobValue
from autotune.results.bestfile import BestFile
from autotune.results.exporters.base import (
    LOADER,
    Export,
    Exporter,
    beyond_knobs,
    changes,
    loader_options,
)
from autotune.results.exporters.snippet import LINES
from autotune.results.exporters.torchrun import program_words

if TYPE_CHECKING:
    import libcst

BATCH_SIZE_PLACE = 1  # of DataLoader's positional arguments


class Patch(Exporter):
    """Writes a diff that ``git apply`` or ``patch -p1`` takes."""

    name = "patch"
    file_name = "autotune.patch"
    tool = "a patch"

    def export(self, best: BestFile) -> Export:
        """Return the diff.

        Raises:
            UsageError: libcst is missing, the program is not a file, or the file has changed since
                the search.
        """
        try:
            import libcst
        except ImportError as error:
            raise UsageError("Patches need libcst: pip install 'autotune-torch[patch]'.") from error
        words = program_words(best)
        path = Path(words[0])
        if words[0] == "-m" or not path.is_file():
            raise UsageError(f"A patch needs the script's file, and '{words[0]}' is not one here.")
        source = path.read_text(encoding="utf-8")
        tree, left_out = libcst.parse_module(source), dict[str, str]()
        changed = changes(best)
        options = loader_options(best)
        call, refusal = _training_call(tree, best)
        if call is None:
            left_out |= {f"{knob}={changed[knob]}": refusal for knob in options}
        else:
            new = call
            for knob, own in options.items():
                done, refused = _with_options(tree, new, own)
                new = new if refused else done  # not half of what a knob stands for
                if refused:
                    left_out[f"{knob}={changed[knob]}"] = "; ".join(refused)
            replaced = tree.deep_replace(call, new)
            assert isinstance(replaced, libcst.Module), "the call is a part of it"
            tree = replaced
        lines = {knob: LINES[knob](value) for knob, value in changed.items() if knob in LINES}
        tree, refusal = _with_lines(tree, [*lines.values()])
        if refusal:
            left_out |= {f"{knob}={changed[knob]}": refusal for knob in lines}
        left_out |= {
            f"{knob}={value}": "no literal in the source says it; 'autotune run' does it"
            for knob, value in changed.items()
            if knob not in {*LOADER, *LINES}
        }
        diff = difflib.unified_diff(
            source.splitlines(keepends=True),
            tree.code.splitlines(keepends=True),
            f"a/{path}",
            f"b/{path}",
        )
        return Export("".join(diff), left_out | beyond_knobs(best))


def _training_call(tree: libcst.Module, best: BestFile) -> tuple[libcst.Call | None, str]:
    """Return the call that builds the training loader; None and why if it cannot be told."""
    import libcst
    import libcst.matchers as m

    name = m.Name("DataLoader") | m.Attribute(attr=m.Name("DataLoader"))
    found = [c for c in m.findall(tree, m.Call(func=name)) if isinstance(c, libcst.Call)]
    own = None if best.program.loader is None else best.program.loader.batch_size
    if len(found) > 1 and own is not None:
        found = [call for call in found if _literal(_batch_size(call)) == own]
    if len(found) == 1:
        return found[0], ""
    if not found:
        return None, "the file has no call of DataLoader with the batch size as a literal"
    return None, f"{len(found)} calls of DataLoader may build the training loader"


def _batch_size(call: libcst.Call) -> libcst.BaseExpression | None:
    for place, argument in enumerate(call.args):
        if argument.keyword is not None and argument.keyword.value == "batch_size":
            return argument.value
        if argument.keyword is None and not argument.star and place == BATCH_SIZE_PLACE:
            return argument.value
    return None


def _literal(value: libcst.BaseExpression | None) -> object:
    """Return the value of a literal; None for anything else."""
    import libcst

    if isinstance(value, libcst.Integer):
        return value.evaluated_value
    if isinstance(value, libcst.Name) and value.value in {"True", "False"}:
        return value.value == "True"
    return None


def _with_options(
    tree: libcst.Module, call: libcst.Call, options: Mapping[str, KnobValue]
) -> tuple[libcst.Call, list[str]]:
    """Return the call with options set, and why some could not be set."""
    import libcst

    refused: list[str] = []
    arguments = [*call.args]
    for name, value in options.items():
        new = libcst.parse_expression(repr(value))
        at = next((n for n, a in enumerate(arguments) if _is_about(name, n, a)), None)
        if any(argument.star for argument in arguments) and at is None:
            refused.append("the call passes options that the source does not show")
        elif at is None:
            if not isinstance(arguments[-1].comma, libcst.Comma):
                space = libcst.Comma(whitespace_after=libcst.SimpleWhitespace(" "))
                arguments[-1] = arguments[-1].with_changes(comma=space)
            plain = libcst.AssignEqual(
                whitespace_before=libcst.SimpleWhitespace(""),
                whitespace_after=libcst.SimpleWhitespace(""),
            )
            arguments.append(libcst.Arg(new, keyword=libcst.Name(name), equal=plain))
        elif _literal(arguments[at].value) is None:
            written = tree.code_for_node(arguments[at].value)
            refused.append(f"the source says {name}={written}, which is no literal")
        else:
            arguments[at] = arguments[at].with_changes(value=new)
    return call.with_changes(args=arguments), refused


def _is_about(name: str, place: int, argument: libcst.Arg) -> bool:
    if argument.keyword is not None:
        return argument.keyword.value == name
    return name == "batch_size" and not argument.star and place == BATCH_SIZE_PLACE


def _with_lines(tree: libcst.Module, lines: list[str]) -> tuple[libcst.Module, str]:
    """Return the module with lines after its imports, or why there is no place for them."""
    import libcst
    import libcst.matchers as m

    if not lines:
        return tree, ""
    is_import = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
    imports = [n for n, statement in enumerate(tree.body) if m.matches(statement, is_import)]
    torch = m.Import(names=[m.ZeroOrMore(), m.ImportAlias(name=m.Name("torch")), m.ZeroOrMore()])
    if not any(m.findall(tree.body[n], torch) for n in imports):
        return tree, "the script does not import torch by that name"
    new = [libcst.parse_statement(line + "\n") for line in lines]
    at = imports[-1] + 1
    return tree.with_changes(body=[*tree.body[:at], *new, *tree.body[at:]]), ""
