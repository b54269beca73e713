"""The answers of tools: exactly the fields of the contract, and CWM's additions.

Timestamps are RFC 3339 in UTC, sizes in bytes, durations in milliseconds unless the name says otherwise. A
field whose value is unknown is left out; a field is null only where the contract allows null.
"""
