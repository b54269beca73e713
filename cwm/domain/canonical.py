"""Canonical JSON: equal values have equal bytes."""

from __future__ import annotations

import json
from typing import Any

from cwm.domain.errors import InvalidParameterError


def canonical_json(value: Any) -> bytes:
    """UTF-8 with sorted names and no white space. Raises CWM-1003 for values that JSON or UTF-8 cannot represent.

    Numbers keep their form: 1 and 1.0 are different values.
    """
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError as broken:
        raise InvalidParameterError(
            "value: contains half of a surrogate pair, which is not valid text.", field="value"
        ) from broken
    except RecursionError as deep:
        raise InvalidParameterError("value: is nested too deeply.", field="value") from deep
    except (TypeError, ValueError) as other:
        raise InvalidParameterError(
            "value: must be JSON, which has no infinity and no NaN.", field="value"
        ) from other
