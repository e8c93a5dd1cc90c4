"""Who trains with whom: the pure membership machine, its words and its rooms. No I/O, no clock, no torch."""
