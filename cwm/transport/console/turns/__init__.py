"""Conversations and their turns: lists, the tree, transcripts, comparisons, files."""
