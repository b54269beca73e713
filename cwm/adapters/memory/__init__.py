"""In-process stores, for a gateway without Redis."""
