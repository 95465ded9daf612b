"""The claim: what the race found, proven by turns in fresh processes."""
