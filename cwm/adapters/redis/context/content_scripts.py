"""Lua scripts of contents in Redis.

Each content has its bytes, and a sorted set of holders by the end of their hold. Each tenant has a sorted set of
contents by the end of their last hold, a hash of their sizes, and the sum of the sizes. Scripts compute the names of
keys, so the store must be a single Redis, not a cluster. All times are milliseconds since 1970.
"""

from __future__ import annotations

from typing import Final

from cwm.adapters.redis.keys import key_of_every_tenant, tenant_key

TENANTS_KEY: Final = key_of_every_tenant("content-tenants")


def _tenant_key(kind: str, *digest: str) -> str:
    """``tenant_key`` as a Lua expression, with ``t`` from ``room`` and a digest that needs no escaping."""
    head = tenant_key(kind, "").removesuffix(":")
    return " .. ".join([f"'{head}:'", *(f"{name} .. ':'" for name in digest), "t"])


# An expiry in Redis itself, for contents that no gateway sweeps.
_GRACE_MS: Final = 3_600_000

FUNCTIONS: Final = f"""
local function content_key(d, t) return {_tenant_key("content", "d")} end
local function holders_key(d, t) return {_tenant_key("content-holders", "d")} end
local function ends_key(t) return {_tenant_key("content-ends")} end
local function sizes_key(t) return {_tenant_key("content-sizes")} end
local function bytes_key(t) return {_tenant_key("content-bytes")} end

local function now_ms(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function forget(d, t)
  local size = redis.call('HGET', sizes_key(t), d)
  if size then
    redis.call('DECRBY', bytes_key(t), size)
    redis.call('HDEL', sizes_key(t), d)
  end
  redis.call('DEL', content_key(d, t), holders_key(d, t))
  redis.call('ZREM', ends_key(t), d)
end

local function settle(d, t, now)
  local holders = holders_key(d, t)
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', string.format('%.0f', now))
  local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')
  if #last == 0 then
    forget(d, t)
    return 1
  end
  redis.call('ZADD', ends_key(t), last[2], d)
  if last[2] == 'inf' then
    redis.call('PERSIST', content_key(d, t))
    redis.call('PERSIST', holders)
  else
    local ending = string.format('%.0f', tonumber(last[2]) + {_GRACE_MS})
    redis.call('PEXPIREAT', content_key(d, t), ending)
    redis.call('PEXPIREAT', holders, ending)
  end
  return 0
end

local function hold(d, t, holder, ending, now)
  redis.call('ZADD', holders_key(d, t), ending, holder)
  return settle(d, t, now)
end

local function release(d, t, holder, now)
  redis.call('ZREM', holders_key(d, t), holder)
  return settle(d, t, now)
end

local function sweep(t, now, most)
  local ended = redis.call(
    'ZRANGEBYSCORE', ends_key(t), '-inf', string.format('%.0f', now), 'LIMIT', 0, most)
  for _, d in ipairs(ended) do settle(d, t, now) end
  return #ended
end

-- What the tenant has instead, where that would be over the quota. Other bytes under the digest are damaged, or the same
-- content in another form.
local function put(d, t, bytes, quota, now)
  redis.call('SADD', '{TENANTS_KEY}', t)
  sweep(t, now, 16)
  local there = redis.call('GET', content_key(d, t))
  if there == bytes then return -1 end
  local function others()
    return tonumber(redis.call('GET', bytes_key(t)) or '0') - tonumber(redis.call('HGET', sizes_key(t), d) or '0')
  end
  if quota >= 0 and others() + #bytes > quota then
    sweep(t, now, 100000)
    if others() + #bytes > quota then return others() end
  end
  if there then
    redis.call('DECRBY', bytes_key(t), redis.call('HGET', sizes_key(t), d) or '0')
  else
    forget(d, t)
  end
  redis.call('SET', content_key(d, t), bytes)
  redis.call('HSET', sizes_key(t), d, #bytes)
  redis.call('INCRBY', bytes_key(t), #bytes)
  return -1
end
"""

PUT: Final = (
    FUNCTIONS
    + """
local t, d, holder, ending, quota = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local now = now_ms(ARGV[6])
local used = put(d, t, ARGV[7], quota, now)
if used < 0 then hold(d, t, holder, ending, now) end
return used
"""
)

HOLD: Final = (
    FUNCTIONS
    + """
local t, d, holder, ending, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4], now_ms(ARGV[5])
if redis.call('EXISTS', content_key(d, t)) == 0 then return 0 end
if settle(d, t, now) == 1 then return 0 end
hold(d, t, holder, ending, now)
return 1
"""
)

END: Final = (
    FUNCTIONS
    + """
local ends = redis.call('ZSCORE', ends_key(ARGV[1]), ARGV[2])
if not ends or redis.call('EXISTS', content_key(ARGV[2], ARGV[1])) == 0 then return '' end
if ends ~= 'inf' and tonumber(ends) <= now_ms(ARGV[3]) then return '' end
return ends
"""
)

RELEASE: Final = FUNCTIONS + "return release(ARGV[2], ARGV[1], ARGV[3], now_ms(ARGV[4]))"

DROP: Final = (
    FUNCTIONS
    + """
if redis.call('GET', content_key(ARGV[2], ARGV[1])) ~= ARGV[3] then return 0 end
forget(ARGV[2], ARGV[1])
return 1
"""
)

SWEEP: Final = FUNCTIONS + "return sweep(ARGV[1], now_ms(ARGV[2]), tonumber(ARGV[3]))"
