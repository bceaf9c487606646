"""``python -m flowpregel.cli``: the command, where its script is not on PATH."""

from flowpregel.cli import main

if __name__ == "__main__":  # worker processes import this file too, and are not to run it
    main()
