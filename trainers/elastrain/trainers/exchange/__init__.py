"""What travels between the members of a generation: sums up, parameters down, chunks that change hands."""
