"""`python -m whmc`: the command line."""

import sys

from whmc.cli import main

sys.exit(main())
