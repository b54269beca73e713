"""Endpoints for machines and operators: health, metrics, reconciliation, the description of the HTTP API."""
