"""The Lua scripts of a Redis store: each is one atomic step on the server."""

from __future__ import annotations

__all__ = ["APPEND", "CLAIM", "DELETE", "RELEASE", "RENEW"]

_NOW = """
    local time = redis.call('TIME')
    local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
"""

CLAIM = (
    _NOW
    + """
    -- KEYS: lease.  ARGV: owner, seconds, fence of a dead owner.
    local owner = redis.call('HGET', KEYS[1], 'owner') or ''
    local fence = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
    local expires = tonumber(redis.call('HGET', KEYS[1], 'expires') or '0')
    if owner == '' or owner == ARGV[1] or expires <= now or fence == tonumber(ARGV[3]) then
        owner, fence, expires = ARGV[1], fence + 1, now + tonumber(ARGV[2])
        redis.call('HSET', KEYS[1], 'owner', owner, 'fence', fence,
                   'expires', string.format('%.6f', expires))
    end
    return {owner, tostring(fence), string.format('%.6f', expires), string.format('%.6f', now)}
"""
)

RENEW = (
    _NOW
    + """
    -- KEYS: lease.  ARGV: fence, seconds.
    if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1]
       or redis.call('HGET', KEYS[1], 'owner') == '' then
        return false
    end
    local expires = string.format('%.6f', now + tonumber(ARGV[2]))
    redis.call('HSET', KEYS[1], 'expires', expires)
    return expires
"""
)

RELEASE = """
    -- KEYS: lease.  ARGV: fence.
    if redis.call('HGET', KEYS[1], 'fence') == ARGV[1] then
        redis.call('HSET', KEYS[1], 'owner', '')
    end
"""

APPEND = (
    _NOW
    + """
    -- KEYS: lease, entries, run, index, id of the last append with this fence.
    -- ARGV: fence, after, release, run id, id of this append, summary or '', bodies.
    local length = redis.call('LLEN', KEYS[2])
    if redis.call('GET', KEYS[5]) == ARGV[5] then
        -- Its answer was lost on the way, and it has come once more.
        return false
    end
    local owner = redis.call('HGET', KEYS[1], 'owner') or ''
    if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] or owner == '' then
        return 'it is held by ' .. (owner == '' and 'nobody' or owner)
    end
    if length ~= tonumber(ARGV[2]) then
        return 'its journal has ' .. length .. ' entries, not ' .. ARGV[2]
    end
    if ARGV[6] == '' and redis.call('EXISTS', KEYS[3]) == 0 then
        return 'no summary'
    end
    local at = string.format('%.6f', now)
    for i = 7, #ARGV do
        redis.call('RPUSH', KEYS[2], at .. ' ' .. ARGV[i])
    end
    redis.call('HSET', KEYS[3], 'id', ARGV[4])
    -- For longer than anybody sends an append again.
    redis.call('SET', KEYS[5], ARGV[5], 'EX', 600)
    if #ARGV > 6 then
        redis.call('HSET', KEYS[3], 'updated', at)
    end
    if ARGV[6] ~= '' then
        redis.call('HSET', KEYS[3], 'summary', ARGV[6])
        redis.call('ZADD', KEYS[4], cjson.decode(ARGV[6]).created_at, KEYS[3])
    end
    if ARGV[3] == '1' then
        redis.call('HSET', KEYS[1], 'owner', '')
    end
    return false
"""
)

DELETE = (
    _NOW
    + """
    -- KEYS: lease, entries, run, index.  ARGV: fence of a dead owner.
    if redis.call('EXISTS', KEYS[3]) == 0 then
        return {'missing'}
    end
    local owner = redis.call('HGET', KEYS[1], 'owner') or ''
    local fence = redis.call('HGET', KEYS[1], 'fence') or '0'
    local expires = tonumber(redis.call('HGET', KEYS[1], 'expires') or '0')
    if owner ~= '' and expires > now and fence ~= ARGV[1] then
        return {'held', owner, fence, string.format('%.6f', expires - now)}
    end
    -- The lease stays: a stale writer must not pass for the owner of a new run.
    redis.call('DEL', KEYS[2], KEYS[3])
    redis.call('ZREM', KEYS[4], KEYS[3])
    return {'deleted'}
"""
)
