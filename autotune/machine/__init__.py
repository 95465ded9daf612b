"""Machine: what this computer is, what limits it, and who else is busy on it; never torch."""
