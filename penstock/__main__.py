"""`python -m penstock`: the command `penstock`, where its script is not on the path."""

import sys

from penstock.commands import main

if __name__ == "__main__":
    sys.exit(main())
