"""Run the command, for `python -m mtfc`."""

import sys

from mtfc.cli import main

sys.exit(main())
