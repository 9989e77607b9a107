"""Private names of Modal's SDK that this package reads; tested with modal 1.6."""

from __future__ import annotations

from typing import Any

__all__ = ["end_of"]


def end_of(sandbox: Any) -> tuple[str, str]:
    """Return the status and message of a sandbox's end, or empty texts."""
    try:
        from modal._utils.async_utils import synchronizer

        result = synchronizer._translate_in(sandbox)._impl.result
        status = result.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number[result.status].name
        return str(status), " ".join(str(result.exception).split()).rstrip(".")
    except Exception:
        return "", ""
