"""Plans side by side: files, cards, what-if tables, launches to measure, machines over RPC."""
