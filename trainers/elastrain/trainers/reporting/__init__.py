"""The driver's line to the service: facts out, the desired state in."""
