"""CWM's part of an engine: a connector for vLLM, a serde and a launcher for LMCache. Imports nothing of CWM."""
