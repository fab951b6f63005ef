"""Tests of code on the bus without sleeps: virtual time, seeded schedules, leak checks, the contract of brokers."""

from trunkline.brokers.recording import RecordingBroker as RecordingBroker
from trunkline.testing.contract import CONTRACT as CONTRACT
from trunkline.testing.contract import check_broker as check_broker
from trunkline.testing.leaks import LeakError as LeakError
from trunkline.testing.leaks import no_leaks as no_leaks
from trunkline.testing.loop import Deadlock as Deadlock
from trunkline.testing.loop import VirtualLoop as VirtualLoop
from trunkline.testing.simulate import Simulation as Simulation
from trunkline.testing.simulate import simulate as simulate
from trunkline.testing.trial import BrokenPromise as BrokenPromise
from trunkline.testing.trial import Promise as Promise
from trunkline.testing.world import world as world
