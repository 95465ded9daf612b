"""The command line: what people type and read; the only place that prints and knows exit codes."""
