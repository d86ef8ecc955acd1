"""Comparisons of plans: files, GPUs, what-if tables, launches to measure, machines over RPC."""
