"""What the bits depend on: the order of samples, the summation tree, update rules, the cursor."""
