"""Report: what a search found, for a browser (HTML) or a pull request (Markdown).

A pure function of the result: nothing is measured, and nothing is loaded from elsewhere.
"""

from autotune.report.page import html, machine, markdown

__all__ = ["html", "machine", "markdown"]
