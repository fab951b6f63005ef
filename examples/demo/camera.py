"""The camera of the demo and the viewers of its pictures, each in its own process, with pictures in shared memory."""

from __future__ import annotations

import json
import os
import sys
import time

# Not in the folder of the demo, which is removed: the engine leaves a file of 16 bytes for each runtime directory.
if sys.argv[2]:
    os.environ["TRUNKLINE_RUNTIME"] = sys.argv[2]
else:
    os.environ.pop("TRUNKLINE_RUNTIME", None)

import numpy as np

import trunkline as tl

PICTURE = np.dtype([("number", "i8"), ("image", "u1", (480, 640))])
PICTURES, PER_S, SEEN = 200, 200, 40
SETTINGS = tl.memory.ChannelSettings(stuck_s=60.0)


def film(channel: str) -> None:
    with tl.memory.producer(channel, schema=PICTURE, capacity=16, settings=SETTINGS) as camera:
        print("on", flush=True)
        while len(camera.metrics().consumers) < 2:
            camera.serve(timeout_s=1)
        for number in range(PICTURES):
            time.sleep(1 / PER_S)
            with camera.loan() as loan:
                loan.data["number"], loan.data["image"] = number, number % 256
        print(json.dumps({"sent": camera.metrics().writes, "given up on": camera.metrics().cut_off}), flush=True)


def record(channel: str) -> None:
    with tl.memory.consumer(channel, wants="every", name="recorder") as pictures:
        whole = [bool((each.data["image"] == each.data["number"] % 256).all()) for each in pictures]
    print(json.dumps({"read": len(whole), "whole": sum(whole), "missed": pictures.metrics().overruns}), flush=True)


def view(channel: str) -> None:
    """It stops reading after a while but holds a picture: the camera waits for it until it is killed."""
    with tl.memory.consumer(channel, wants="every", name="viewer") as pictures:
        for _ in range(SEEN):
            held = pictures.recv()
        print(int(held.data["number"]) + 1, flush=True)
        time.sleep(3600)


if __name__ == "__main__":
    {"film": film, "record": record, "view": view}[sys.argv[1]](f"demo.camera.{sys.argv[3]}")
