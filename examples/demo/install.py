"""Installs the packages that the demo needs into the current Python, and prints the progress every two seconds."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

PACKAGES, DOWNLOAD_MB, DISK_MB = 100, 620, 1150
BEAT_S = 2.0


def main() -> int:
    print(
        f"The demo needs about {PACKAGES} packages: {DOWNLOAD_MB} MB to download, {DISK_MB:,} MB on disk in\n"
        f"{sys.prefix}.\n"
        "Spark and its Java are the largest. This takes two to four minutes, once.",
        flush=True,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    pip = subprocess.Popen([sys.executable, "-m", "pip", "install", "--quiet", "--editable", ".[demo]"])
    try:
        while True:
            try:
                return pip.wait(BEAT_S)
            except subprocess.TimeoutExpired:
                print(f"  ... {time.monotonic() - began:.0f} s, {installed_mb():,} MB are in place", flush=True)
    except KeyboardInterrupt:
        return 130
    finally:
        pip.terminate()
        pip.wait()


def installed_mb() -> int:
    return sum(each.lstat().st_size for each in Path(sys.prefix).rglob("*") if each.is_file()) >> 20


if __name__ == "__main__":
    sys.exit(main())
