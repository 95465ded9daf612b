"""Two reports side by side as one HTML file; on a narrow screen one stands below the other."""

from __future__ import annotations

from autotune.report.page import content, templates
from autotune.results.two_runs import TwoRuns, best_of


def html_of_two(found: TwoRuns) -> str:
    """Return the reports of two searches as one page, after a table of their differences."""
    return (
        templates()
        .get_template("pair.html.jinja")
        .render(
            found=found,
            reports=[
                {"name": name, **content(result, best_of(result))}
                for name, result in zip(found.names, found.results, strict=True)
            ],
        )
    )
