"""The ``cwm`` command."""

from __future__ import annotations


def main() -> None:
    from cwm.cli.root import app

    app(prog_name="cwm")


if __name__ == "__main__":
    main()
