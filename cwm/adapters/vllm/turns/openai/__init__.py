"""Completions and chats, in OpenAI's formats."""
