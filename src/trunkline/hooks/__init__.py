"""Hooks around a publish, in this order: trace, log, count, your own, compress, encrypt, persist, break, limit."""

from trunkline.delivery.breaker import Breaker as Breaker
from trunkline.delivery.limits import Rate as Rate
from trunkline.hooks.breaker import CircuitBreaker as CircuitBreaker
from trunkline.hooks.compress import Compress as Compress
from trunkline.hooks.encrypt import Encrypt as Encrypt
from trunkline.hooks.hook import Attachment as Attachment
from trunkline.hooks.hook import Batch as Batch
from trunkline.hooks.hook import Forward as Forward
from trunkline.hooks.hook import Hook as Hook
from trunkline.hooks.hook import HookChain as HookChain
from trunkline.hooks.hook import HookFunction as HookFunction
from trunkline.hooks.hook import Stage as Stage
from trunkline.hooks.hook import each as each
from trunkline.hooks.keyring import KeyRing as KeyRing
from trunkline.hooks.limit import RateLimit as RateLimit
from trunkline.hooks.log import TRACE as TRACE
from trunkline.hooks.log import Log as Log
from trunkline.hooks.metrics import Metrics as Metrics
from trunkline.hooks.persist import BatchStore as BatchStore
from trunkline.hooks.persist import Persist as Persist
from trunkline.hooks.trace import Trace as Trace
