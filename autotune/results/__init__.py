"""Results: what was found, written and read back; pure functions of the record, start nothing."""
