"""The `mtlqwen` command, which `python -m mtlqwen` is too."""

import sys


def main() -> None:
    """Runs the command line and exits, quietly also at Ctrl-C while its modules are imported."""
    try:
        from .cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
