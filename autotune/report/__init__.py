"""Report: what a search found, for a browser (HTML), a pull request (Markdown) or a notebook.

A pure function of the result: nothing is measured, and nothing is loaded from elsewhere.
"""

from autotune.report.card import ShownResult, card
from autotune.report.markdown import markdown
from autotune.report.page import html
from autotune.report.worth import Training

__all__ = ["ShownResult", "Training", "card", "html", "markdown"]
