"""Report: what a search found as one page, for a browser (HTML) or a pull request (Markdown).

A pure function of the result: nothing is measured, and nothing is loaded from elsewhere.
"""

from autotune.report.markdown import markdown
from autotune.report.page import html
from autotune.report.worth import Training

__all__ = ["Training", "html", "markdown"]
