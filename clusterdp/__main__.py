"""`python -m clusterdp` is `clusterdp`."""

from clusterdp.cli import main

raise SystemExit(main())
