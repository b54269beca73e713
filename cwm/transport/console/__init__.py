"""The console: pages that show a person what is there, served to browsers under ``/console``."""
