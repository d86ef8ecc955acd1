"""One model: which of its placements is the fastest that fits, and how much context it leaves."""
