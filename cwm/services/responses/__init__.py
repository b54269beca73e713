"""Responses of OpenAI's API: kept, read again, gone on from."""
