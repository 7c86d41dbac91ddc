"""Entry point of `python -m specds`, the same as the `specds` command."""

from specds.cli import main

if __name__ == "__main__":
    main()
