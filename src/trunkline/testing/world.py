"""Makes the World for brokers and buses from a simulation: its clock, ids and random numbers."""

from __future__ import annotations

from trunkline.clock import World
from trunkline.testing.simulate import Simulation


def world(simulation: Simulation) -> World:
    """The world of a simulated program: `MemoryBroker(world(simulation))`, `connect(world=world(simulation))`."""
    return World(
        time_ns=simulation.time_ns,
        uuid7=simulation.uuid7,
        random=simulation.random,
        secret=simulation.uuid7,
        program=lambda: "bus",
    )
