"""The commands that users start: `python -SEs`, no site-packages, bare imports, a start within milliseconds."""
