"""One model: which of its placements that fit is the fastest, and how much context it leaves."""
