"""HTTP: middleware that all faces share, and the plain endpoints."""
