"""Results: what a search or measurement found, written to files and read back.

Everything here is a pure function of the record. Nothing is started, measured or printed, so
reports and exporters can use this room alone.
"""
