"""The command ``flowpregel`` as ``python -m flowpregel``, for environments whose PATH
lacks the command's script.
"""

from flowpregel.cli import main

# The command must not run in worker processes, which import this file too.
if __name__ == "__main__":
    main()
