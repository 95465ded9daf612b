"""Report: what a search found, for a browser (HTML), a pull request (Markdown) or a notebook.

Two searches may share a page. A pure function of the results: nothing is measured, and nothing is
loaded from elsewhere.
"""

from autotune.report.card import ShownResult, card
from autotune.report.markdown import markdown
from autotune.report.page import html
from autotune.report.pair import html_of_two
from autotune.report.worth import Training

__all__ = ["ShownResult", "Training", "card", "html", "html_of_two", "markdown"]
