"""`python -m noback` is `noback`."""

import sys

from noback.cli.main import main

sys.exit(main())
