"""Programs that the benchmarks train."""
