"""Reading: what was recorded, and going back to it."""
