"""The Lua scripts of a Redis store: each is one atomic step on the server.

A run is one hash, with its lease, what it is found by, and its entries by their numbers. There are as
many entries as its `length` says: what stands beyond it does not count. The index, of all runs, has the
keys of their hashes.

A server that is killed while it writes to its append-only file may leave the beginning of a script's
writes there without their end. It does none of them when it starts, yet most versions leave them in the
file and do them at the start after that, just before whatever was written next (valkey-io/valkey#4342).
So every beginning of a script's writes must do no harm, also when all of them follow once more: they
say what a field is, never what to add to it, and the one that makes the others count comes last. HSET
does, and it is written to the file also when it changes nothing, as ZADD is not.
"""

from __future__ import annotations

__all__ = ["APPEND", "CLAIM", "DELETE", "RELEASE", "RENEW", "SWEEP"]

_NOW = """
    local time = redis.call('TIME')
    local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
"""

_LEASE = """
    local lease = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'expires')
    local owner, fence, expires = lease[1] or '', lease[2] or '0', tonumber(lease[3] or '0')
"""

CLAIM = (
    _NOW
    + _LEASE
    + """
    -- KEYS: run.  ARGV: owner, seconds, fence of a dead owner.
    if owner == '' or owner == ARGV[1] or expires <= now or fence == ARGV[3] then
        owner, fence, expires = ARGV[1], tostring(tonumber(fence) + 1), now + tonumber(ARGV[2])
        redis.call('HSET', KEYS[1], 'owner', owner, 'fence', fence,
                   'expires', string.format('%.6f', expires))
    end
    return {owner, fence, string.format('%.6f', expires), string.format('%.6f', now)}
"""
)

RENEW = (
    _NOW
    + _LEASE
    + """
    -- KEYS: run.  ARGV: owner, fence, seconds.
    if owner ~= ARGV[1] or fence ~= ARGV[2] then
        return false
    end
    local later = string.format('%.6f', now + tonumber(ARGV[3]))
    redis.call('HSET', KEYS[1], 'expires', later)
    return later
"""
)

RELEASE = (
    _LEASE
    + """
    -- KEYS: run.  ARGV: owner, fence.
    if owner == ARGV[1] and fence == ARGV[2] then
        redis.call('HSET', KEYS[1], 'owner', '')
    end
"""
)

APPEND = (
    _NOW
    + _LEASE
    + """
    -- KEYS: run, index.
    -- ARGV: owner, fence, after, release, run id, id of this append, summary or '', bodies.
    local append, after = 'append ' .. ARGV[2], tonumber(ARGV[3])
    if redis.call('HGET', KEYS[1], append) == ARGV[6] then
        -- Its answer was lost on the way, and it has come once more.
        return false
    end
    if owner ~= ARGV[1] or fence ~= ARGV[2] then
        return 'it is held by ' .. (owner == '' and 'nobody' or owner)
    end
    local length = tonumber(redis.call('HGET', KEYS[1], 'length') or '0')
    if length ~= after then
        return 'its journal has ' .. length .. ' entries, not ' .. after
    end
    if ARGV[7] == '' and length == 0 then
        return 'no summary'
    end
    local at = string.format('%.6f', now)
    for i = 8, #ARGV do
        length = length + 1
        redis.call('HSET', KEYS[1], length, at .. ' ' .. ARGV[i])
    end
    if ARGV[7] ~= '' then
        redis.call('HSET', KEYS[2], KEYS[1], ARGV[5])
    end
    local run = {'id', ARGV[5], append, ARGV[6], 'length', length}
    local function set(field, value)
        run[#run + 1] = field
        run[#run + 1] = value
    end
    if #ARGV > 7 then set('updated', at) end
    if ARGV[7] ~= '' then set('summary', ARGV[7]) end
    if ARGV[4] == '1' then set('owner', '') end
    redis.call('HSET', KEYS[1], unpack(run))
    return false
"""
)

DELETE = (
    _NOW
    + _LEASE
    + """
    -- KEYS: run.  ARGV: fence of a dead owner.
    local lengths = redis.call('HMGET', KEYS[1], 'length', 'deleted')
    local length, deleted = tonumber(lengths[1] or '0'), tonumber(lengths[2] or '0')
    if length == 0 then
        return {'missing', deleted}
    end
    if owner ~= '' and expires > now and fence ~= ARGV[1] then
        return {'held', owner, fence, string.format('%.6f', expires - now)}
    end
    -- The fence stays: a stale writer must not pass for the owner of a new run.
    deleted = math.max(length, deleted)
    redis.call('HSET', KEYS[1], 'deleted', deleted, 'owner', '', 'length', 0)
    return {'deleted', deleted}
"""
)

SWEEP = """
    -- KEYS: run, index.  ARGV: first and last of the entries of a deleted run; whether it was all.
    local length = tonumber(redis.call('HGET', KEYS[1], 'length') or '0')
    for entry = math.max(tonumber(ARGV[1]), length + 1), tonumber(ARGV[2]) do
        redis.call('HDEL', KEYS[1], entry)
    end
    if ARGV[3] == '1' then
        if length == 0 then
            redis.call('HDEL', KEYS[2], KEYS[1])
            redis.call('HDEL', KEYS[1], 'id', 'summary', 'updated')
            for fence = 1, tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') do
                redis.call('HDEL', KEYS[1], 'append ' .. fence)
            end
        end
        redis.call('HDEL', KEYS[1], 'deleted')
    end
"""
