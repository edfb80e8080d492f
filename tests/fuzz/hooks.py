"""What schemathesis is told about this service, run in its own environment.

JSON Schema calls 1.0 an integer; the service does not, and no schema can say so (docs/api.md does).
Nor does the document say that the encoding int8 needs ``normalize`` (docs/api.md does).
"""

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(_context: schemathesis.HookContext, body: Any) -> Any:
    """The body with its whole numbers written without a point, and int8 only of unit vectors."""
    if isinstance(body, dict):
        if body.get("encoding") == "int8" and body.get("normalize") is False:
            body = body | {"normalize": True}
        return {name: map_body(_context, value) for name, value in body.items()}
    if isinstance(body, list):
        return [map_body(_context, value) for value in body]
    return int(body) if isinstance(body, float) and body.is_integer() else body
