"""The local machine: clock, secrets, identity on loopback, and subprocesses."""
