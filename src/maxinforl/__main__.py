"""`python -m maxinforl`: the command where no script of that name is on the path."""

import sys

from maxinforl.cli import main

sys.exit(main())
