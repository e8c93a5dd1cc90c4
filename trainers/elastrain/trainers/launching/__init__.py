"""Who starts, finds and ends processes: on this machine and on Ray."""
