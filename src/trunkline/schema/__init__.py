"""JSON Schemas of payloads: reading them, comparing their meaning, and checking payloads."""

from trunkline.schema.canonical import hash_of as hash_of
from trunkline.schema.canonical import schema_of as schema_of
from trunkline.schema.check import Checker as Checker
from trunkline.schema.check import Problem as Problem
