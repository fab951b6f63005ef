"""Actors on the bus: addresses, mailboxes, supervision."""

from trunkline.actors.actor import Actor as Actor
from trunkline.actors.actor import handles as handles
from trunkline.actors.blocking import BlockingContext as BlockingContext
from trunkline.actors.context import Context as Context
from trunkline.actors.health import ActorHealth as ActorHealth
from trunkline.actors.pool import Routing as Routing
from trunkline.actors.ref import Ref as Ref
from trunkline.actors.settings import Failed as Failed
from trunkline.actors.settings import Keep as Keep
from trunkline.actors.settings import SystemSettings as SystemSettings
from trunkline.actors.supervision import Directive as Directive
from trunkline.actors.supervision import Lifetime as Lifetime
from trunkline.actors.supervision import Restart as Restart
from trunkline.actors.supervision import Strategy as Strategy
from trunkline.actors.system import ActorSystem as ActorSystem
from trunkline.actors.system import SystemState as SystemState
from trunkline.actors.timers import ReceiveTimeout as ReceiveTimeout
from trunkline.actors.timers import Timer as Timer
from trunkline.actors.watching import Terminated as Terminated
