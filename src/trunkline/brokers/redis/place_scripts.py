"""The Lua scripts for the places of subscribers. The server runs each in one step. `scripts.py` lists the keys."""

from __future__ import annotations

from trunkline.brokers.redis.scripts import MATCHES, OURS

OPEN = (
    MATCHES
    + OURS
    + """
local p, role, kind, pattern, start, value, alive = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local known = redis.call('HGET', p .. ':places', role)
local spec = kind .. '|' .. pattern
if known and known ~= spec then return {'other', string.sub(known, 3)} end
if kind == 'd' then redis.call('SADD', p .. ':kept', pattern) end
redis.call('SADD', p .. ':members:' .. role, ARGV[7])
if kind ~= 'd' then redis.call('SET', p .. ':alive:' .. role, '1', 'PX', alive) end
local found = {}
for _, topic in ipairs(redis.call('HKEYS', p .. ':last')) do
  if matches(pattern, topic) then found[#found + 1] = topic end
end
if not known then
  local since = start == 'end' and redis.call('GET', p .. ':seq') or (start == 'number' and tonumber(value) - 1) or 0
  redis.call('HSET', p .. ':since', role, since or 0)
  redis.call('HSET', p .. ':places', role, spec)
  redis.call('XGROUP', 'CREATE', p .. ':q:' .. role, role, '0', 'MKSTREAM')
  for _, topic in ipairs(found) do
    local stream, at, from = p .. ':s:' .. topic, '$', 0
    local newest = tonumber(redis.call('HGET', p .. ':last', topic))
    if start == 'beginning' then
      -- What was removed before it came is not missing.
      local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
      if not first then from = newest + 1
      elseif ours(first) then from = tonumber(first[2][2]) + 1
      else from = 1 end
    elseif start == 'number' then from = tonumber(value)
    elseif start == 'last' then from = newest
    elseif start == 'time' then
      local low, high = 1, newest + 1
      while low < high do
        local middle = math.floor((low + high) / 2)
        local entry = redis.call('XRANGE', stream, string.format('%.0f', middle), '+', 'COUNT', 1)[1]
        if entry and tonumber(string.match(entry[1], '-(%d+)')) < tonumber(value) then
          low = tonumber(string.match(entry[1], '%d+')) + 1
        else high = middle end
      end
      from = low
    end
    if start == 'last' or start == 'time' then redis.call('HSET', p .. ':since', role .. ' ' .. topic, from - 1) end
    if from > 1 then at = string.format('%.0f-18446744073709551615', from - 1)
    elseif from == 1 then at = '0' end
    redis.call('XGROUP', 'CREATE', stream, role, at, 'MKSTREAM')
  end
end
local now = redis.call('TIME')
return {known and 'known' or 'new', found, now[1], now[2]}
"""
)
"""Open a new or an existing place. ARGV: role, kind, pattern, start, its value, its lifetime in ms, consumer.

Returns 'new', 'known' or 'other', its topics (or the other pattern), and the server's time in seconds and microseconds.
"""

READ = (
    OURS
    + """
local p, role, me, count, room = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local found, more, gaps = {}, {}, {}
local function removed(stream, taken, most)
  local info, added, length = redis.call('XINFO', 'STREAM', stream), nil, 0
  for i = 1, #info, 2 do
    if info[i] == 'entries-added' then added = info[i + 1] end
    if info[i] == 'length' then length = info[i + 1] end
  end
  if not added or not taken then return redis.call('HLEN', p .. ':last') == 1 and most or 1 end
  return math.max(1, math.min(most, added - length - taken))
end
local function read(stream, topic)
  local before, taken = nil, nil
  for i = 1, count + 1 do
    if count <= 0 or room <= 0 then more[#more + 1] = topic return end
    if topic ~= '' and not before then
      for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
        if group[2] == role then
          before = tonumber(string.match(group[8], '%d+'))
          taken = before == 0 and 0 or group[10]
        end
      end
    end
    local reply = redis.call('XREADGROUP', 'GROUP', role, me, 'COUNT', 1, 'STREAMS', stream, '>')
    if not reply then return end
    local entry = reply[1][2][1]
    if topic ~= '' then
      local previous = ours(entry) and tonumber(entry[2][2]) or 0
      if previous > before then
        gaps[#gaps + 1] = {topic, before + 1, previous, removed(stream, taken, previous - before)}
      end
      before, taken = tonumber(string.match(entry[1], '%d+')), nil
    end
    found[#found + 1] = {topic, entry[1], entry[2]}
    count = count - 1
    room = room - #(entry[2][6] or '')
  end
end
for i = 5, #ARGV do
  local topic = ARGV[i]
  local stream = topic == '' and (p .. ':q:' .. role) or (p .. ':s:' .. topic)
  local done, why = pcall(read, stream, topic)
  if not done then gaps[#gaps + 1] = {topic, -1, tostring(type(why) == 'table' and why.err or why), 0} end
end
return {found, more, gaps}
"""
)
"""Read new entries of a place. ARGV: role, consumer, how many, how many bytes, topics. The empty topic is the queue.

Returns entries, topics with more to read, and gaps. A gap is the topic, the first and last number that were removed
before they were read, and how many entries that were; or -1 and an error, if the stream or its group is gone. A server
before Redis 7 does not count entries: if there are other topics, it is only known that there was at least one.
"""

CLAIM = """
local p, role, me, idle, count = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local found, gone = {}, {}
for i = 5, #ARGV do
  local topic = ARGV[i]
  local stream = topic == '' and (p .. ':q:' .. role) or (p .. ':s:' .. topic)
  if count > 0 and redis.call('EXISTS', stream) == 1 then
    local waiting = redis.pcall('XPENDING', stream, role, 'IDLE', idle, '-', '+', count)
    for _, each in ipairs(waiting.err and {} or waiting) do
      local claimed = redis.call('XCLAIM', stream, role, me, idle, each[1])
      local entry = claimed[1]
      if entry and entry[2] then
        found[#found + 1] = {topic, entry[1], entry[2], each[2]}
        count = count - 1
      elseif redis.call('XRANGE', stream, each[1], each[1])[1] == nil then
        redis.call('XACK', stream, role, each[1])
        gone[#gone + 1] = {topic, each[1]}
      end
    end
  end
end
return {found, gone}
"""
"""Take over entries that other consumers of a place have held for too long.

ARGV: role, consumer, idle time in ms, how many, topics. Returns entries with their last owner, and entries that were
removed meanwhile.
"""

RETURN = """
local p, role, topic, id = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local stream = topic == '' and (p .. ':q:' .. role) or (p .. ':s:' .. topic)
if redis.call('XACK', stream, role, id) == 0 then return 0 end
local entry = redis.call('XRANGE', stream, id, id)[1]
if entry then
  local fields = entry[2]
  local number = topic == '' and fields[2] or string.match(id, '%d+')
  local ms = topic == '' and fields[8] or string.match(id, '-(%d+)')
  local name = topic == '' and fields[4] or topic
  redis.call('XADD', p .. ':q:' .. role, '*', 's', number, 't', name, 'd', fields[6], 'm', ms)
  if topic == '' then redis.call('XDEL', stream, id) end
  redis.call('PUBLISH', p .. ':g:' .. role, '')
end
return 1
"""
"""Give an entry back to the other subscribers of a place. ARGV: role, topic, id."""

GIVE = """
local p, role, topic, data = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local number, now = redis.call('INCR', p .. ':seq'), redis.call('TIME')
local ms = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
redis.call('XADD', p .. ':q:' .. role, '*', 's', number, 't', topic, 'd', data, 'm', ms)
redis.call('PUBLISH', p .. ':g:' .. role, '')
return number
"""
"""Store an entry for the subscribers of one place. ARGV: role, topic, data."""

_CLOSE = """
local function close(p, role)
  if redis.call('HDEL', p .. ':places', role) == 0 then return 0 end
  redis.call('HDEL', p .. ':since', role)
  for _, key in ipairs({':q:', ':alive:', ':owner:', ':members:'}) do redis.call('DEL', p .. key .. role) end
  local notes = 'open-' .. string.sub(redis.sha1hex(role), 1, 16)
  redis.call('DEL', p .. ':k:' .. notes, p .. ':z:' .. notes)
  for _, topic in ipairs(redis.call('HKEYS', p .. ':last')) do
    redis.pcall('XGROUP', 'DESTROY', p .. ':s:' .. topic, role)
    redis.call('HDEL', p .. ':since', role .. ' ' .. topic)
  end
  return 1
end
"""

CLOSE = _CLOSE + "return close(KEYS[1], ARGV[1])"
"""Remove a place permanently. ARGV: role. Returns whether there was one."""

LEAVE = (
    _CLOSE
    + """
local p, role, me, owner = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local kind = string.sub(redis.call('HGET', p .. ':places', role) or '', 1, 1)
redis.call('SREM', p .. ':members:' .. role, me)
if redis.call('GET', p .. ':owner:' .. role) == owner then redis.call('DEL', p .. ':owner:' .. role) end
if kind == 'e' and redis.call('SCARD', p .. ':members:' .. role) == 0 then return close(p, role) end
local topics = redis.call('HKEYS', p .. ':last')
topics[#topics + 1] = ''
for _, topic in ipairs(topics) do
  local stream = topic == '' and (p .. ':q:' .. role) or (p .. ':s:' .. topic)
  local pending = redis.pcall('XPENDING', stream, role, '-', '+', 1, me)
  if not pending.err and #pending == 0 then redis.call('XGROUP', 'DELCONSUMER', stream, role, me) end
end
return 0
"""
)
"""Remove a consumer. A place that is not durable is removed with its last one. ARGV: role, consumer, owner."""

SWEEP = (
    _CLOSE
    + """
local p, gone = KEYS[1], 0
local places = redis.call('HGETALL', p .. ':places')
for i = 1, #places, 2 do
  if string.sub(places[i + 1], 1, 1) == 'e' and redis.call('EXISTS', p .. ':alive:' .. places[i]) == 0 then
    gone = gone + close(p, places[i])
  end
end
return gone
"""
)
"""Remove places that are not durable and that no subscriber keeps alive. Returns how many."""

STANDINGS = (
    MATCHES
    + """
local p, topic, entry, index, found = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), {}
local stream = p .. ':s:' .. topic
local low, high = string.format('%.0f', entry), string.format('%.0f-18446744073709551615', entry)
local stored = redis.call('XRANGE', stream, low, high, 'COUNT', 1)[1] ~= nil
local function number(data, from, size)
  local value = 0
  for i = from + size - 1, from, -1 do value = value * 256 + (string.byte(data, i) or 0) end
  return value
end
local function given_back(role)
  -- Whole entries have the number of the original, parts have the number of their first message.
  for _, each in ipairs(redis.call('XRANGE', p .. ':q:' .. role, '-', '+', 'COUNT', 1000)) do
    local fields = each[2]
    local data = fields[5] == 'd' and fields[6] or ''
    if fields[4] == topic then
      if number(data, 37, 8) == 0 then
        if tonumber(fields[2]) == entry then return true end
      elseif number(data, 39, 6) == entry then
        local first = number(data, 37, 2)
        if first <= index and index < first + number(data, 9, 4) then return true end
      end
    end
  end
end
local function standing(role)
  if given_back(role) then return 'WAITING' end
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for _, group in ipairs(groups.err and {} or groups) do
    if group[2] == role then
      if entry > tonumber(string.match(group[8], '%d+')) then return stored and 'WAITING' or 'REMOVED' end
      if redis.call('XPENDING', stream, role, low, high, 1)[1] then return stored and 'WAITING' or 'REMOVED_HELD' end
      return stored and 'ACKNOWLEDGED' or 'FORGOTTEN'
    end
  end
  return 'FORGOTTEN'
end
local places = redis.call('HGETALL', p .. ':places')
for i = 1, #places, 2 do
  local role, kind, pattern = places[i], string.sub(places[i + 1], 1, 1), string.sub(places[i + 1], 3)
  local since = redis.call('HGET', p .. ':since', role .. ' ' .. topic) or redis.call('HGET', p .. ':since', role)
  if kind == 'd' and matches(pattern, topic) and entry > tonumber(since or '0') then
    found[#found + 1] = {role, standing(role)}
  end
end
return found
"""
)
"""The standing of a message at each durable place that it was for. ARGV: topic, number of its entry, its index.

Returns roles, each with the name of a `Standing`. The numbers are those of the head of a batch, see `batches`.
"""

TRIM = (
    MATCHES
    + OURS
    + """
local p, max_ms, max_bytes = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
if not redis.call('SET', p .. ':trimming', '1', 'NX', 'PX', ARGV[3]) then return 0 end
local now, removed = redis.call('TIME'), 0
local oldest = now[1] * 1000 + math.floor(now[2] / 1000) - max_ms
local smallest = tonumber(redis.call('GET', p .. ':bytes') or '0') - max_bytes
local kept, places = redis.call('SMEMBERS', p .. ':kept'), redis.call('HGETALL', p .. ':places')
local function own(stream, from)
  -- What other programs have added has neither a time nor a size: the next one of ours counts.
  for i = 1, 100 do
    local entries = redis.call('XRANGE', stream, from, '+', 'COUNT', i == 1 and 1 or 100)
    if #entries == 0 then return nil end
    for _, entry in ipairs(entries) do if ours(entry) then return entry end end
    from = '(' .. entries[#entries][1]
  end
end
local function first(stream, last, keep)
  local low, high = 1, last + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = own(stream, string.format('%.0f', middle))
    if entry and not keep(entry) then low = tonumber(string.match(entry[1], '%d+')) + 1 else high = middle end
  end
  return low
end
local function settled(stream, topic, last)
  local low = last + 1
  for i = 1, #places, 2 do
    if matches(string.sub(places[i + 1], 3), topic) then
      for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
        if group[2] == places[i] then low = math.min(low, tonumber(string.match(group[8], '%d+')) + 1) end
      end
      local pending = redis.pcall('XPENDING', stream, places[i])
      if not pending.err and pending[1] > 0 then low = math.min(low, tonumber(string.match(pending[2], '%d+'))) end
    end
  end
  return low
end
local topics = redis.call('HGETALL', p .. ':last')
for i = 1, #topics, 2 do
  local topic, last, stream = topics[i], tonumber(topics[i + 1]), p .. ':s:' .. topics[i]
  if redis.call('EXISTS', stream) == 1 then
    local low, keeps = 1, false
    for _, pattern in ipairs(kept) do keeps = keeps or matches(pattern, topic) end
    if not keeps then low = settled(stream, topic, last) end
    if max_ms > 0 then
      low = math.max(low, first(stream, last, function(entry)
        return tonumber(string.match(entry[1], '-(%d+)')) >= oldest
      end))
    end
    if max_bytes > 0 then
      low = math.max(low, first(stream, last, function(entry) return tonumber(entry[2][8]) > smallest end))
    end
    if low > 1 then removed = removed + redis.call('XTRIM', stream, 'MINID', string.format('%.0f', low)) end
  end
end
return removed
"""
)
"""Remove entries that need not be kept. ARGV: the age in ms and the size in bytes to keep, 0 for no limit, and the time
in ms during which no other client trims.

On topics that are stored only for groups, entries that all groups have settled are removed. Returns how many entries
were removed.
"""

OWN = """
local p, role, me, ms, over = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local owner = redis.call('GET', p .. ':owner:' .. role)
if owner and owner ~= me and owner ~= over then return owner end
redis.call('SET', p .. ':owner:' .. role, me, 'PX', ms)
return me
"""
"""Become the owner of a place that is not shared.

ARGV: role, the new owner, for how long in ms, and an old owner that is gone. Returns the owner.
"""

SCRIPTS = (OPEN, READ, CLAIM, RETURN, GIVE, CLOSE, LEAVE, SWEEP, TRIM, STANDINGS, OWN)
