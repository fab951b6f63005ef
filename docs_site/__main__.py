"""Build the site in build/, or in the directory that is given. Warnings, dead links and missing anchors are errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from docs_site.stage import ROOT, stage
from docs_site.twins import write_twins


def main() -> int:
    build = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build"
    stage(build)
    program = str(Path(sys.executable).with_name("zensical"))
    done = subprocess.run(
        [program, "build", "--strict", "--clean", "-f", str(build / "zensical.toml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        return 1
    pages = write_twins(build)
    print(f"{pages} pages in {build / 'site' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
