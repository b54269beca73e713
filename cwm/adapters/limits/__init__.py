"""Rate limits over the limits library."""
