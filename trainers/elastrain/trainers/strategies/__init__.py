"""Strategies that are more than an update rule, one file each."""
