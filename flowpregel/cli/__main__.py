"""The command as ``python -m flowpregel.cli``, if its script is not on the PATH."""

from flowpregel.cli import main

# Worker processes import this file too, and must not run the command.
if __name__ == "__main__":
    main()
