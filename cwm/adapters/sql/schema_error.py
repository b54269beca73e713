"""The error of a schema of another version, apart from what finds it: every command knows it, few open a database."""

from __future__ import annotations


class SchemaError(Exception):
    """The schema does not fit this version: the message says which one it is and what to run."""
