"""Real answers of three public web APIs, with hosts and addresses replaced: the metadata of packages.

``versions``: an npm package with all its versions; ``files``: the files of a Python package, by the JSON form of the
simple API; ``project``: a Python package with its description and releases.
"""

from __future__ import annotations

import gzip
from importlib import resources
from typing import Final

NAMES: Final = ("versions", "files", "project")


def answer(name: str) -> str:
    """JSON of 260 to 360 KB. Raises KeyError for a name that is not in ``NAMES``."""
    if name not in NAMES:
        raise KeyError(name)
    packed = resources.files("cwm_bench.harness").joinpath("captured_answers", f"{name}.json.gz").read_bytes()
    return gzip.decompress(packed).decode()
