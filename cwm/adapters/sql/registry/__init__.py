"""The registry in SQL: windows, sessions, snapshots, pins and intents."""
