"""Tuning: decide what to measure next and what may be claimed about it.

Nothing here prints or imports torch: the search reports through ``Events``, and rigs run the
program. The room is not called ``search`` because ``autotune.search`` is the public function.
"""
