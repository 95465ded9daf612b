"""Probes: what is read about memory and devices while a config is measured; one file a source."""
