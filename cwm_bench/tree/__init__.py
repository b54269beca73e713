"""Benchmark of a conversation as a tree of turns: going back in it, and recording it."""
