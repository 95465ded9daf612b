"""Card: a result as notebooks show it, the verdict of the page without its charts."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Self

from autotune.report.page import templates
from autotune.results.result import SearchResult
from autotune.results.verdict import verdict


def card(result: SearchResult) -> str:
    """Return the verdict as a fragment of HTML that brings its own styles.

    It takes the colours of text from the notebook, so that it fits light and dark themes.
    """
    path, here = result.run_dir / "best.yaml", Path.cwd()
    best = path.relative_to(here) if path.is_relative_to(here) else path
    return templates().get_template("card.html.jinja").render(verdict=verdict(result, best))


class ShownResult(SearchResult):
    """A search result that notebooks show as a card: what ``search()`` and ``load()`` return.

    Verdict and page are made from a ``SearchResult``, so that class cannot know them.
    """

    @classmethod
    def of(cls, result: SearchResult) -> Self:
        """Return the same result, to be shown."""
        return cls(**{field.name: getattr(result, field.name) for field in fields(result)})

    def _repr_html_(self) -> str:
        """Return the card, as Jupyter asks for it."""
        return card(self)
