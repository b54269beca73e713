"""The local machine: clock, secrets, identity on loopback, processes and queries of results."""
