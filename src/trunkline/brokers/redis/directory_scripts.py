"""The directory of channels in Redis, as values by key. A change carries the version that it is based on.

`{ns}:d` is a hash of the values, `{ns}:d:at` has the version of the last change of each key, and `{ns}:d:version` is
the version of the directory.
"""

from __future__ import annotations

READ_DIRECTORY = """
local p, after = KEYS[1] .. ':d', tonumber(ARGV[1])
local version = tonumber(redis.call('GET', p .. ':version') or '0')
local whole, found = version < after and 1 or 0, {}
local keys = redis.call('ZRANGEBYSCORE', p .. ':at', '(' .. (whole == 1 and 0 or after), '+inf')
for i, key in ipairs(keys) do
  found[2 * i - 1], found[2 * i] = key, redis.call('HGET', p, key)
end
return {version, whole, found}
"""
"""The changes since a version. ARGV: the version. Returns the last version, whether this is the whole directory, and
the keys and values."""

WRITE_DIRECTORY = """
local p, key, expected, removes, value = KEYS[1] .. ':d', ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if (redis.call('GET', p .. ':version') or '0') ~= expected then return 0 end
local version = redis.call('INCR', p .. ':version')
redis.call('ZADD', p .. ':at', version, key)
if removes == '1' then redis.call('HDEL', p, key) else redis.call('HSET', p, key, value) end
return version
"""
"""Change a key. ARGV: key, the version it is based on, whether it is removed, value. Returns the new version, or 0."""

DIRECTORY_SCRIPTS = (READ_DIRECTORY, WRITE_DIRECTORY)
