"""Runs RUN/batch as a folder: `python RUN/batch run ...`. The package is a folder in RUN/batch, because relative
imports between modules need a package."""

import sys

try:
    from batch.main import main  # type: ignore[import-not-found]
except Exception as error:
    sys.stderr.write("clusterdp: {}: {}. `clusterdp resume` writes it anew.\n".format(__file__, error))
    sys.exit(4)

sys.exit(main(sys.argv[1:]))
