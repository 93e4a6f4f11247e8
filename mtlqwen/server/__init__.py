"""The OpenAI API over one engine: `create_app` makes the application, `serve` runs it."""

from .app import create_app

__all__ = ["create_app"]
