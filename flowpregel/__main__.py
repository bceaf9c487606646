"""The command as ``python -m flowpregel``, if its script is not on the PATH."""

from flowpregel.cli import main

# The command must not run in worker processes, which import this file too.
if __name__ == "__main__":
    main()
