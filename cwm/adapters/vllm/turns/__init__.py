"""Turn requests and answers as vLLM speaks them, a protocol at a time."""
