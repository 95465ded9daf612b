"""Benchmarks: every claim about autotune itself is measured again from here."""
