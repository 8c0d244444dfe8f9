"""What pages of other origins may do, once the settings let them."""

from typing import Any

CORS_OPTIONS: dict[str, Any] = {
    "allow_methods": ("GET", "POST", "PUT", "DELETE"),
    # any: clients send a family of their own, x-stainless-…, and a header alone gives no rights
    "allow_headers": ("*",),
    "expose_headers": ("x-request-id", "retry-after", "x-model", "x-shape"),
    "allow_credentials": False,  # a key is sent on purpose; cookies are not used
}
"""Options of Starlette's CORSMiddleware."""
