"""Servers, clients, data and figures that benchmarks share."""
