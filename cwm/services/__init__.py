"""What CWM does: a folder per noun, one verb per file."""
