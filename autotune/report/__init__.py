"""Report: what a search found as one page, for a browser (HTML) or a pull request (Markdown).

Two searches may share a page. A pure function of the results: nothing is measured, and nothing is
loaded from elsewhere.
"""

from autotune.report.markdown import markdown
from autotune.report.page import html
from autotune.report.pair import html_of_two
from autotune.report.worth import Training

__all__ = ["Training", "html", "html_of_two", "markdown"]
