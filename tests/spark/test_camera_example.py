"""The recording of examples/camera.py, as rows of Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("iceoryx2", reason="shared memory needs the extra `memory`")


def test_a_recorded_camera_is_rows_of_spark(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent.parent))
    from examples import camera

    asyncio.run(camera.main(camera.rows))
    assert capsys.readouterr().out.splitlines()[-1] == "in Spark: 300 rows; the last is frame 299"
