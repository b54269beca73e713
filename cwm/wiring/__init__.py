"""The longer parts of the composition root. Like ``app.py`` they may import adapters, services and transport."""
