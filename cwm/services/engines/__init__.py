"""Engines: which engine serves a model, and its identity."""
