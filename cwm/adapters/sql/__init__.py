"""SQLite and Postgres: the registry, the audit log and other data that outlives a process."""
