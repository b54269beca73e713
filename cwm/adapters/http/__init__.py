"""What every HTTP client of the gateway needs of its connections."""
