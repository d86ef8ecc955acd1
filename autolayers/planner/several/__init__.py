"""Several models on one machine: at the same time, in turns, in groups."""
