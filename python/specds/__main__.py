"""`python -m specds` is the `specds` command."""

from specds.cli import main

if __name__ == "__main__":
    main()
