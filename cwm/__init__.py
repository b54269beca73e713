"""CWM: freeze, thaw and clone the context windows of LLMs served by vLLM + LMCache."""

from importlib.metadata import version

__version__ = version("cwm")
