"""Clients that listen: sessions, streams, subscriptions, notifications."""
