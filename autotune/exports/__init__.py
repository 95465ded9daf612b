"""Exports: a best.yaml in the words of another tool, or a search's result in an experiment tracker.

A format is one file in ``templates/``; a tracker is one function in ``trackers``.
"""

from autotune.exports.formats import Export, Format, format_named, formats
from autotune.exports.trackers import TRACKERS, Tracked, log, tracked

__all__ = ["TRACKERS", "Export", "Format", "Tracked", "format_named", "formats", "log", "tracked"]
