"""One spelling for each JSON value, so that equal values have equal bytes."""

from __future__ import annotations

import json
from typing import Any

from cwm.domain.errors import InvalidParameterError


def canonical_json(value: Any) -> bytes:
    """UTF-8 with sorted names and no white space. CWM-1003 for what JSON or UTF-8 cannot spell.

    Numbers are spelled as they came: 1 and 1.0 are two values.
    """
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError as broken:
        raise InvalidParameterError(
            "value: holds half of a surrogate pair, which is no text.", field="value"
        ) from broken
    except RecursionError as deep:
        raise InvalidParameterError("value: is nested too deep.", field="value") from deep
    except (TypeError, ValueError) as other:
        raise InvalidParameterError(
            "value: must be JSON; it has no infinity and no NaN.", field="value"
        ) from other
