"""ASGI middleware: request log, authentication, cross-origin guard and request limits."""
