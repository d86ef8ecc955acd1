"""Compute buffers, in three stages.

prepare.py     from placed weights and caches to the setting of a graph, whatever its size
laid_out.py    one graph of that setting and of a size: built, assigned, split, allocated
reserve.py     which graphs a launch reserves, and what it may grow to

compute.py is the door: what a launch takes, by these or by a bound. repeats.py leaves out layers
that repeat others; scheduled.py says what a graph computes where.
"""
