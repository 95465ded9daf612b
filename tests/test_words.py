"""Turns of phrase that are out, because a reader has to decode them; see CONTRIBUTING.md."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests import house

ROOT = Path(__file__).parents[1]
# The turn, and what to write instead
OUT = {
    r"(?<![Tt]here )\b(is|are) none\b": "is not a …, or: there is none",
    r"(?<![Tt]here )(?<!which )\bis no (?!longer\b|more\b)\w+": "is not a …",
    r"\bof (its|their) own\b": "say whose: the program's, autotune's",
    r"\bbeside\b": "besides, next to, together with",
    r"\b(as|so) many\b": "that many, the same number of",
    r"\bbe had\b": "is available",
    r"\bits kin\b": "what is related to it",
    r"\basks? for beside\b": "also requires",
    r"\bcomes? to (its|an|their) end\b": "ends",
    r"\bdo without\b": "does not need",
    r"\btakes? \w+ along\b": "also changes",
}


def prose(path: Path) -> Iterator[str]:
    """Yield what people read of a file: docstrings, messages and comments, or all of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def test_no_turn_is_used_that_must_be_decoded() -> None:
    guide = sorted((ROOT / "docs").glob("*.md"))
    skill = house.PACKAGE / "cli" / "SKILL.md"
    found = [
        f"{path.relative_to(ROOT)}: …{text[max(0, match.start() - 40) : match.end() + 20]}…, "
        f"write: {instead}"
        for path in (*house.modules().values(), ROOT / "README.md", skill, *guide)
        for text in prose(path)
        for turn, instead in OUT.items()
        for match in re.finditer(turn, text)
    ]
    assert not found
