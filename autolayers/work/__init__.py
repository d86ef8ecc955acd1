"""Who computes what in a launch, and how long it takes."""
