"""The Lua scripts, which the server runs in one step, and the names of their keys.

All keys of a namespace share one hash tag, so that a cluster keeps them on one node and a script may use all of them.

| key | content |
| --- | --- |
| `{ns}:run` | the identity of the store |
| `{ns}:seq` | the number of the last entry: one counter for all topics |
| `{ns}:s:TOPIC` | a stream: the entries of a topic. An id is the number of the entry and the server's time in ms |
| `{ns}:last` | by topic: the number of its last entry. Each entry has the number of the one before it, to detect gaps |
| `{ns}:bytes` | how many bytes were stored in total. Each entry has the total up to and including itself |
| `{ns}:stored`, `{ns}:kept` | patterns of stored topics, and of topics whose entries stay when all have read them |
| `{ns}:places` | by role: `d` for durable or `e`, and the pattern. A place is a group on each topic that matches |
| `{ns}:q:ROLE` | a stream: entries that were given back to the subscribers of a place |
| `{ns}:since`, `{ns}:members:ROLE` | the entry after which a place began, also by place and topic, and its consumers |
| `{ns}:alive:ROLE` | expires unless a subscriber renews it. Without it, a place that is not durable is removed |
| `{ns}:owner:ROLE` | the owner of a durable subscription that is not shared. It also expires |
| `{ns}:k:TABLE`, `{ns}:z:TABLE` | a table of values by key, and its keys in order |

Channels: `{ns}:t:TOPIC` carries batches, `{ns}:g:ROLE` announces a topic with new entries, `{ns}:c` announces that the
stored patterns have changed, `{ns}:n` and `{ns}:n:ADDRESS` carry notes between processes.
"""

from __future__ import annotations

from hashlib import sha1

MATCHES = """
local function matches(pattern, topic)
  if pattern == topic or pattern == '>' then return true end
  if not string.find(pattern, '[*>]') then return false end
  local at = 1
  for token in string.gmatch(pattern, '[^.]+') do
    if token == '>' then return at <= #topic end
    if at > #topic then return false end
    local dot = string.find(topic, '.', at, true) or #topic + 1
    if token ~= '*' and token ~= string.sub(topic, at, dot - 1) then return false end
    at = dot + 1
  end
  return at > #topic + 1
end
"""

OURS = """
local function ours(entry)
  local fields = entry[2]
  return #fields == 8 and fields[1] == 'p' and fields[3] == 'i' and fields[5] == 'd' and fields[7] == 'b'
    and tonumber(fields[2]) and tonumber(fields[8])
end
"""
"""Whether an entry of a topic has the fields that STORE writes. Other programs can add any fields."""

PUBLISH = """
local stored = KEYS[1] .. ':stored'
if redis.call('SCARD', stored) ~= tonumber(ARGV[1]) then return redis.call('SMEMBERS', stored) end
return redis.call('PUBLISH', KEYS[1] .. ':t:' .. ARGV[2], ARGV[3])
"""
"""Publish a batch on a topic that is not stored. ARGV: how many patterns of stored topics the publisher knows, topic,
data.

Returns how many connections received it. If the number of patterns has changed, it returns the patterns, and nothing is
published.
"""

STORE = (
    MATCHES
    + OURS
    + """
local p, topic, data, name, window = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local stream = p .. ':s:' .. topic
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local at = window > 0 and '+' or nil
while at do
  -- A few at a time: they come with all their bytes.
  local entries = redis.call('XREVRANGE', stream, at, '-', 'COUNT', 8)
  at = nil
  for _, entry in ipairs(entries) do
    if ours(entry) then
      if entry[2][4] == name then return {tonumber(string.match(entry[1], '%d+')), 1} end
      at = tonumber(string.match(entry[1], '-(%d+)')) >= ms - window and '(' .. entry[1] or nil
    else
      at = '(' .. entry[1]
    end
  end
end
local readers, kinds = {}, {}
local places = redis.call('HGETALL', p .. ':places')
for i = 1, #places, 2 do
  if matches(string.sub(places[i + 1], 3), topic) then
    readers[#readers + 1] = places[i]
    kinds[places[i]] = string.sub(places[i + 1], 1, 1)
  end
end
local before = redis.call('HGET', p .. ':last', topic)
if not before then
  for _, role in ipairs(readers) do redis.call('XGROUP', 'CREATE', stream, role, '0', 'MKSTREAM') end
end
local number = redis.call('INCR', p .. ':seq')
local size = redis.call('INCRBY', p .. ':bytes', #data)
local function add()
  local id = string.format('%.0f-%.0f', number, ms)
  return redis.pcall('XADD', stream, id, 'p', before or '0', 'i', name, 'd', data, 'b', size)
end
local added = add()
if added.err then
  -- Another program may have added an entry with a higher number.
  local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  number = math.max(number, newest and tonumber(string.match(newest[1], '%d+')) + 1 or 0)
  redis.call('SET', p .. ':seq', string.format('%.0f', number))
  added = add()
  if added.err then return added end
end
redis.call('HSET', p .. ':last', topic, number)
local served = redis.call('PUBLISH', p .. ':t:' .. topic, data)
for _, role in ipairs(readers) do
  served = served + redis.call('PUBLISH', p .. ':g:' .. role, topic)
  if kinds[role] == 'd' then served = served + 1 end
end
return {number, served}
"""
)
"""Store a batch and publish it. ARGV: topic, data, its name, and how far back in ms it may have been stored already.

Returns the number of its entry, and how many can take it: connections with subscribers, and durable places. If it was
stored before, that is not known, and counts as one.
"""

KEEP = """
local p, table, key = KEYS[1], ARGV[1], ARGV[2]
if #ARGV == 2 then
  redis.call('ZREM', p .. ':z:' .. table, key)
  return redis.call('HDEL', p .. ':k:' .. table, key)
end
redis.call('ZADD', p .. ':z:' .. table, 0, key)
return redis.call('HSET', p .. ':k:' .. table, key, ARGV[3])
"""
"""Keep a value, or remove it. ARGV: table, key, and the value if it is to be kept."""

PAGE = """
local p, table, after, count = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local low = after == '' and '-' or '(' .. after
local keys = redis.call('ZRANGEBYLEX', p .. ':z:' .. table, low, '+', 'LIMIT', 0, count)
if #keys == 0 then return {keys, {}} end
return {keys, redis.call('HMGET', p .. ':k:' .. table, unpack(keys))}
"""
"""A page of a table. ARGV: table, the key before the page, how many. Returns keys and values."""

SCRIPTS = (PUBLISH, STORE, KEEP, PAGE)


def digest(script: str) -> str:
    """The name of a loaded script on the server: its digest."""
    return sha1(script.encode(), usedforsecurity=False).hexdigest()


def glob_of(pattern: str) -> str:
    """A pattern in the syntax of PSUBSCRIBE. It may match more topics: `*` also matches dots there."""
    escaped = "".join(f"\\{char}" if char in "\\[]?" else char for char in pattern)
    return f"{escaped[:-1]}*" if escaped.endswith(">") else escaped
