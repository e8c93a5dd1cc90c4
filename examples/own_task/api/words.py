"""The two classes by name."""

ARMS = ("left arm", "right arm")
