"""HTTP: what every face stands on, and the plain endpoints."""
