"""A worker of several processes, among which its model is split."""
