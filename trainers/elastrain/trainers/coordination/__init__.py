"""The driver's side of an attempt: the machine put to work."""
