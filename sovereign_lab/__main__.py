"""`python -m sovereign_lab` is the command `sovereign-lab`."""

import sys

from sovereign_lab.cli import main

sys.exit(main())
