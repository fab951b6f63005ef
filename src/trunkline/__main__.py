"""`python -m trunkline`: the command line, as the script `trunkline`."""

from __future__ import annotations

from trunkline.cli import main

if __name__ == "__main__":
    main()
