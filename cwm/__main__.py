"""The ``cwm`` command."""

from __future__ import annotations

import sys


def main() -> None:
    from cwm.cli.root import app
    from cwm.cli.terminal.output import OutputError, check_streams

    check_streams()
    try:
        try:
            app(prog_name="cwm")
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OutputError as error:
        sys.exit(f"CWM-4001: {error}")
    except BrokenPipeError:
        # The reader has closed the pipe.
        sys.exit(1)


if __name__ == "__main__":
    main()
