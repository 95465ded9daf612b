"""Exports: a config in the words of another tool or of the user's program, or in a tracker.

A format is one file in ``templates/``; a tracker is one function in ``trackers``; ``by_hand`` makes
a diff of the program.
"""

from autotune.exports.formats import Export, Format, format_named, formats
from autotune.exports.trackers import TRACKERS, Tracked, log, tracked

__all__ = ["TRACKERS", "Export", "Format", "Tracked", "format_named", "formats", "log", "tracked"]
