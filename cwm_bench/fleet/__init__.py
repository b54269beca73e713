"""Moves, kills and drains of engines behind two gateways, compared with a router that has session affinity only."""
