"""Probes: readings of memory, energy and disturbances while a config is measured.

Each file reads one source. A probe only reads, never changes a setting of the machine, and reports
None for what its source does not offer.
"""
