"""The durable record of messages and fates: a journal in SQLite, and a lake of sealed Parquet files."""

from trunkline.journal.broker import JournalBroker as JournalBroker
from trunkline.journal.journal import Journal as Journal
from trunkline.journal.reader import Reader as Reader
from trunkline.journal.settings import JournalSettings as JournalSettings
from trunkline.journal.settings import Retention as Retention
from trunkline.journal.settings import Sync as Sync
