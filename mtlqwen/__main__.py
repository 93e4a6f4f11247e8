"""`python -m mtlqwen`."""

from .cli import main

main()
