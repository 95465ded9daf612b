"""Report: what a search found, for a browser (HTML) or a pull request (Markdown).

Nothing is measured, and a page loads nothing from elsewhere. Of the program's files, only those are
read that are as the search saw them, to show the changes in them.
"""

from autotune.report.page import html, markdown

__all__ = ["html", "markdown"]
