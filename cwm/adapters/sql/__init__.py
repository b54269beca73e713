"""SQLite and Postgres: the registry, the audit log and what else must outlive a process."""
