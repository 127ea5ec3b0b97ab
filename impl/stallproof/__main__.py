"""``python -m stallproof``: the same as the ``stallproof`` command."""

from stallproof.cli import main

if __name__ == "__main__":
    main()
