"""The command as ``python -m flowpregel.cli``, for a script that is not on PATH."""

from flowpregel.cli import main

# Worker processes import this file too, and must not run the command.
if __name__ == "__main__":
    main()
