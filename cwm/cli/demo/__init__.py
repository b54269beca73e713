"""`cwm demo`: freeze a context, kill the engine, thaw it."""
