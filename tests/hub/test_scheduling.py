"""A hub process requests short time slices from the scheduler, and seldom collects garbage."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from trunkline.hub.serve import YOUNG_OBJECTS
from trunkline.scheduling import SLICE_NS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no slices to choose")

LOOK = """
import json, os
from trunkline.scheduling import shorten_time_slice, time_slice_ns
PREPARE
before = (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))
taken = shorten_time_slice()
after = (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))
print(json.dumps({"taken": taken, "kept": before == after, "slice": time_slice_ns()}))
"""


def look(prepare: str = "") -> dict[str, Any]:
    """The output of a process that has done it."""
    program = LOOK.replace("PREPARE", prepare)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_slice_is_short_and_priority_and_policy_stay() -> None:
    found = look("os.nice(3)")
    assert found["kept"]
    # An older kernel, or a container that forbids it, leaves the slice unchanged, and reports that.
    assert found["taken"] is (found["slice"] == SLICE_NS)


def test_a_policy_that_somebody_has_chosen_stays() -> None:
    found = look("os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))")
    assert found == {"taken": False, "kept": True, "slice": None}


def test_a_hub_seldom_looks_for_cycles() -> None:
    program = "import gc; from trunkline.hub import serve; serve.prepare_process(); print(gc.get_threshold()[0])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == YOUNG_OBJECTS
