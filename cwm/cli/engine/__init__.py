"""``cwm engine``: how to start an engine that CWM does not start itself."""
