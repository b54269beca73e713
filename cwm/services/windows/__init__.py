"""Windows: freeze, thaw, clone, delete, list, quarantine."""
