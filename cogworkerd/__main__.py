"""`python -m cogworkerd` is `cogworkerd`."""

import sys

from cogworkerd.cli import main

if __name__ == "__main__":
    sys.exit(main())
