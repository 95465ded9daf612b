"""Tuning: decides what is measured next and what may be claimed; prints nothing.

The room is not called ``search`` because ``autotune.search`` is the public function.
"""
