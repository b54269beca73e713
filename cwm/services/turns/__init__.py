"""Turns: requests to the model and what they leave in a session."""
