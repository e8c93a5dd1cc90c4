"""What the model says, in words."""
