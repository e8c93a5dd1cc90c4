"""The parts of the loop: the replica, its samples, a step, and what may end it."""
