"""The pages that users read, and the fenced blocks in them."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, where it begins, and what stands behind its opening fence."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page}:{self.line}"


@cache
def blocks() -> tuple[Block, ...]:
    return tuple(
        Block(str(path.relative_to(ROOT)), text[: found.start()].count("\n") + 1, *found.groups())
        for path in PAGES
        for text in (path.read_text(encoding="utf-8"),)
        for found in FENCE.finditer(text)
    )


def blocks_in(language: str) -> list[Block]:
    """Return the blocks in a language; of equal ones, the first."""
    found = {block.text: block for block in reversed(blocks()) if block.language == language}
    return list(reversed(found.values()))
