"""``python -m flowpregel.cli``: the command, where its script is not on PATH."""

from flowpregel.cli import main

# worker processes import this file too, and are not to run it
if __name__ == "__main__":
    main()
