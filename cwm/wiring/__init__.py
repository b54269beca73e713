"""Parts of the composition root that are long enough for a file of their own; like ``app.py`` they see both sides."""
