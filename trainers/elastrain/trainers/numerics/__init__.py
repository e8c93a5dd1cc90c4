"""What the bits depend on: the summation tree, the flat space and its chunks, update rules, slots."""
