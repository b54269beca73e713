"""Lua scripts of shared context in Redis; each runs as one atomic step.

Keys under the prefix of a scope: ``head`` (version, floor), ``keys`` (each key's current entry, as JSON), ``log`` (keys
by the version that last wrote or deleted them), ``deleted`` (deleted keys), ``ends`` (keys by expiry), ``past:<key>``
(the key's earlier entries by version), ``superseded`` and ``shown`` (``<version>:<key>`` by the version that superseded
it; ``shown`` has entries that only a snapshot needs), ``snapshots`` (by label, as JSON), ``done:<request>`` (a response,
stored briefly for a client that lost it and sends the request again). One sorted set has all scopes by their last write.
"""

from __future__ import annotations

from typing import Final

from cwm.adapters.redis.context.content_scripts import FUNCTIONS
from cwm.adapters.redis.keys import key_of_every_tenant

SCOPES_KEY: Final = key_of_every_tenant("context-scopes")

# Every 16th write of a scope cleans it up, at most 256 entries of each kind.
_VACUUM_EVERY: Final = 16
_VACUUMED_AT_ONCE: Final = 256
# Keeps a value longer than its key, so that it never ends before it.
_GRACE_MS: Final = 60_000
# Longer than a client waits for a response and then for the response to its retry.
_ANSWERED_MS: Final = 20_000

_HEAD: Final = """
local p = ARGV[1]
local function head_of()
  local found = redis.call('HMGET', p .. 'head', 'version', 'floor')
  return tonumber(found[1] or '0'), tonumber(found[2] or '0')
end
"""

_ONCE: Final = f"""
local function answered(request)
  local before = redis.call('GET', p .. 'done:' .. request)
  return before and cjson.decode(before)
end

local function answering(request, answer)
  redis.call('SET', p .. 'done:' .. request, cjson.encode(answer), 'PX', {_ANSWERED_MS})
  return answer
end
"""

_INDEX: Final = (
    FUNCTIONS
    + _HEAD
    + """
local t, scope, now = ARGV[2], ARGV[3], now_ms(ARGV[4])

local function holder_of(key, version)
  return 'context:' .. scope .. ':' .. string.format('%d', version) .. ':' .. key
end

local function let_go(row, gone)
  if row.digest ~= '' and release(row.digest, t, holder_of(row.key, row.version), now) == 1 then
    gone[#gone + 1] = row.digest
  end
end

local function forget_past(member, gone)
  local version, key = string.match(member, '^(%d+):(.+)$')
  local past = p .. 'past:' .. key
  local rows = redis.call('ZRANGEBYSCORE', past, version, version)
  if rows[1] then let_go(cjson.decode(rows[1]), gone) end
  redis.call('ZREMRANGEBYSCORE', past, version, version)
end
"""
)

_VACUUM: Final = f"""
local function snapshot_versions()
  local versions = {{}}
  for _, json in ipairs(redis.call('HVALS', p .. 'snapshots')) do
    versions[#versions + 1] = cjson.decode(json).version
  end
  return versions
end

local function vacuum(floor, gone)
  local shown_at = snapshot_versions()
  local upto = string.format('%d', floor)
  local due = redis.call(
    'ZRANGEBYSCORE', p .. 'superseded', '-inf', upto, 'WITHSCORES', 'LIMIT', 0, {_VACUUMED_AT_ONCE})
  for i = 1, #due, 2 do
    local from, ended, shown = tonumber(string.match(due[i], '^(%d+):')), tonumber(due[i + 1]), false
    for _, at in ipairs(shown_at) do
      if from <= at and at < ended then shown = true end
    end
    redis.call('ZREM', p .. 'superseded', due[i])
    if shown then redis.call('ZADD', p .. 'shown', ended, due[i]) else forget_past(due[i], gone) end
  end
  local looked = #due
  for _, key in ipairs(redis.call(
    'ZRANGEBYSCORE', p .. 'deleted', '-inf', upto, 'LIMIT', 0, {_VACUUMED_AT_ONCE})) do
    redis.call('ZREM', p .. 'deleted', key)
    redis.call('ZREM', p .. 'log', key)
  end
  for _, key in ipairs(redis.call(
    'ZRANGEBYSCORE', p .. 'ends', '-inf', string.format('%.0f', now), 'LIMIT', 0, {_VACUUMED_AT_ONCE})) do
    local json = redis.call('HGET', p .. 'keys', key)
    if json then let_go(cjson.decode(json), gone) end
    redis.call('HDEL', p .. 'keys', key)
    redis.call('ZREM', p .. 'log', key)
    redis.call('ZREM', p .. 'ends', key)
    looked = looked + 1
  end
  return looked
end
"""

WRITE: Final = (
    _INDEX
    + _ONCE
    + _VACUUM
    + f"""
local author, at, keep = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local writes, name, request = cjson.decode(ARGV[8]), ARGV[9], ARGV[10]
local digest, stored, quota = ARGV[11], ARGV[12], tonumber(ARGV[13])
local before = answered(request)
if before then return before end
local version, floor = head_of()
if at >= 0 and at ~= version then return {{'moved'}} end

local changing, current = {{}}, {{}}
for _, write in ipairs(writes) do
  local json = redis.call('HGET', p .. 'keys', write.key)
  local row = json and cjson.decode(json) or nil
  local there = row and (row.expires == 0 or row.expires > now)
  if there and row.immutable then
    return {{'refused', 'immutable', write.key, string.format('%d', row.version)}}
  end
  local known = there and row.version or 0
  if write.if_version >= 0 and write.if_version ~= known then
    return {{'refused', 'version', write.key, string.format('%d', known)}}
  end
  if write.digest ~= '' or there then
    changing[#changing + 1] = write
    current[write.key] = row
  end
end

local answer = {{'written'}}
local gone = {{}}
if #changing > 0 then
  if digest then
    local used = put(digest, t, stored, quota, now)
    if used >= 0 then return {{'full', used}} end
  end
  version = version + 1
  -- First: what is cleaned up may be the last else that holds the same content.
  for _, write in ipairs(changing) do
    if write.digest ~= '' then
      write.expires = write.ttl > 0 and now + write.ttl or write.expires
      local ending = write.expires > 0 and string.format('%.0f', write.expires + {_GRACE_MS}) or '+inf'
      hold(write.digest, t, holder_of(write.key, version), ending, now)
    end
  end
  floor = math.max(floor, version - keep)
  redis.call('HSET', p .. 'head', 'version', string.format('%d', version), 'floor', string.format('%d', floor))
  redis.call('ZADD', '{SCOPES_KEY}', string.format('%.0f', now), name)
  if version % {_VACUUM_EVERY} == 0 then vacuum(floor, gone) end
end

local written = {{}}
for _, write in ipairs(changing) do
  local key, row = write.key, current[write.key]
  if row and redis.call('HEXISTS', p .. 'keys', key) == 1 then
    row['until'] = version
    redis.call('ZADD', p .. 'past:' .. key, row.version, cjson.encode(row))
    redis.call('ZADD', p .. 'superseded', version, string.format('%d', row.version) .. ':' .. key)
  end
  local expires = write.expires
  local new = {{key = key, version = version, digest = write.digest, size = write.size,
    priority = write.priority, immutable = write.immutable, author = author, written = now, expires = expires}}
  redis.call('ZADD', p .. 'log', version, key)
  if write.digest == '' then
    redis.call('HDEL', p .. 'keys', key)
    redis.call('ZADD', p .. 'deleted', version, key)
  else
    redis.call('HSET', p .. 'keys', key, cjson.encode(new))
    redis.call('ZREM', p .. 'deleted', key)
  end
  if expires > 0 and write.digest ~= '' then
    redis.call('ZADD', p .. 'ends', string.format('%.0f', expires), key)
  else
    redis.call('ZREM', p .. 'ends', key)
  end
  written[#written + 1] = cjson.encode(new)
end
answer[2] = {{string.format('%d', version), string.format('%d', floor), string.format('%.0f', now)}}
answer[3] = written
answer[4] = gone
if #changing == 0 then return answer end
return answering(request, answer)
"""
)

HEAD: Final = (
    FUNCTIONS
    + _HEAD
    + """
local version, floor = head_of()
return {version, floor, string.format('%.0f', now_ms(ARGV[2]))}
"""
)

SINCE: Final = (
    FUNCTIONS
    + _HEAD
    + """
local from = tonumber(ARGV[3])
local version, floor = head_of()
local head = {version, floor, string.format('%.0f', now_ms(ARGV[2]))}
if from < floor or from > version then return {head, redis.call('HVALS', p .. 'keys'), {}, 1} end
local rows, deleted = {}, {}
local changed = redis.call('ZRANGEBYSCORE', p .. 'log', '(' .. ARGV[3], '+inf', 'WITHSCORES')
for i = 1, #changed, 2 do
  local json = redis.call('HGET', p .. 'keys', changed[i])
  if json then
    rows[#rows + 1] = json
  else
    deleted[#deleted + 1] = changed[i]
    deleted[#deleted + 1] = changed[i + 1]
  end
end
return {head, rows, deleted, 0}
"""
)

PAST: Final = (
    FUNCTIONS
    + _HEAD
    + """
local key, at, now = ARGV[3], tonumber(ARGV[4]), string.format('%.0f', now_ms(ARGV[2]))
local json = redis.call('HGET', p .. 'keys', key)
if json and cjson.decode(json).version <= at then return {json, now} end
local past = redis.call('ZREVRANGEBYSCORE', p .. 'past:' .. key, ARGV[4], '-inf', 'LIMIT', 0, 1)
if past[1] and cjson.decode(past[1])['until'] > at then return {past[1], now} end
return {'', now}
"""
)

STATE: Final = (
    FUNCTIONS
    + _HEAD
    + """
local at, rows = tonumber(ARGV[3]), {}
for _, json in ipairs(redis.call('HVALS', p .. 'keys')) do
  if cjson.decode(json).version <= at then rows[#rows + 1] = json end
end
for _, set in ipairs({'superseded', 'shown'}) do
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', p .. set, '(' .. ARGV[3], '+inf')) do
    local version, key = string.match(member, '^(%d+):(.+)$')
    if tonumber(version) <= at then
      local row = redis.call('ZRANGEBYSCORE', p .. 'past:' .. key, version, version)
      if row[1] then rows[#rows + 1] = row[1] end
    end
  end
end
return {rows, string.format('%.0f', now_ms(ARGV[2]))}
"""
)

SNAPSHOT: Final = (
    FUNCTIONS
    + _HEAD
    + _ONCE
    + """
local label, author, most, now = ARGV[3], ARGV[4], tonumber(ARGV[5]), now_ms(ARGV[2])
local request = ARGV[6]
local before = answered(request)
if before then return before end
if redis.call('HEXISTS', p .. 'snapshots', label) == 1 then return {'', {}} end
local kept = {}
for _, json in ipairs(redis.call('HVALS', p .. 'snapshots')) do kept[#kept + 1] = cjson.decode(json) end
table.sort(kept, function(a, b)
  if a.version ~= b.version then return a.version < b.version end
  if a.at ~= b.at then return a.at < b.at end
  return a.label < b.label
end)
local dropped = {}
for i = 1, #kept + 1 - most do
  redis.call('HDEL', p .. 'snapshots', kept[i].label)
  dropped[i] = kept[i].label
end
if #dropped > 0 then
  redis.call('ZUNIONSTORE', p .. 'superseded', 2, p .. 'superseded', p .. 'shown', 'AGGREGATE', 'MAX')
  redis.call('DEL', p .. 'shown')
end
local taken = cjson.encode({label = label, version = head_of(), author = author, at = now})
redis.call('HSET', p .. 'snapshots', label, taken)
return answering(request, {taken, dropped})
"""
)

TRIM: Final = (
    _INDEX
    + _VACUUM
    + """
local version, gone = head_of(), {}
redis.call('HSET', p .. 'head', 'floor', string.format('%d', version))
local looked = vacuum(version, gone)
return {looked, gone}
"""
)

FORGET: Final = (
    _INDEX
    + """
local gone = {}
for _, json in ipairs(redis.call('HVALS', p .. 'keys')) do let_go(cjson.decode(json), gone) end
for _, set in ipairs({'superseded', 'shown'}) do
  for _, member in ipairs(redis.call('ZRANGE', p .. set, 0, -1)) do forget_past(member, gone) end
end
for _, name in ipairs({'head', 'keys', 'log', 'deleted', 'ends', 'superseded', 'shown', 'snapshots'}) do
  redis.call('DEL', p .. name)
end
"""
    + f"redis.call('ZREM', '{SCOPES_KEY}', ARGV[5])"
)
