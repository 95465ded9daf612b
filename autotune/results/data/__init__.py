"""What commands print with ``--json``, as models of which a JSON Schema can be made."""
