"""Search spaces: which knobs a search may set, and with which values.

``space`` holds the values and resolves them for one program and machine, ``spacefile`` reads them
from YAML, and ``options`` reads what users type on the command line.
"""
