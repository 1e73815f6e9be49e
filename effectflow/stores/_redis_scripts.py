"""The Lua scripts of a RedisStore. Each is one atomic operation on the server.

A run is one hash. It contains the lease, the summary, and the entries by their numbers. Its `length` is
the number of entries: fields with higher numbers do not count. The index has the keys of all runs.
Each script receives both keys, KEYS[1] and KEYS[2].

A server that is killed while it writes to its append-only file may leave only the first writes of a
script there. It ignores them when it starts, but most versions keep them in the file and execute them at
the start after that, just before the transaction that was written next. Single commands that follow are
lost unless a transaction follows too (valkey-io/valkey#4342). Therefore:

- The first writes of a script do no harm, even if all of its writes follow once more: they set fields and
  never increment them, and the write that makes the others count comes last. They use HSET, which is
  written to the file even if it changes nothing, unlike ZADD.
- A script that claims, renews, releases or appends first writes again all that counts. So the next script
  for a run undoes what such writes may do later.
- Each script has at least two writes, which makes it a transaction.
"""

from __future__ import annotations

LEFT = frozenset({b"owner", b"fence", b"expires", b"length", b"deletion"})
"""The fields that a deleted run keeps, so that a stale writer cannot write to a new run."""

_RUN = """
    local time = redis.call('TIME')
    local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

    local run = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'expires', 'length',
                           'summary', 'updated', 'deletion')
    local owner, fence, expires, length = run[1] or '', run[2] or '0', run[3] or '0', run[4] or '0'
    local is_held = owner ~= '' and tonumber(expires) > now

    local function keep()
        local append = 'append ' .. fence
        redis.call('HSET', KEYS[1], 'owner', owner, 'fence', fence, 'expires', expires,
                   'length', length, 'summary', run[5] or '', 'updated', run[6] or '',
                   'deletion', run[7] or '', append, redis.call('HGET', KEYS[1], append) or '')
    end
"""

CLAIM = (
    _RUN
    + """
    -- ARGV: owner, seconds, fence of a dead owner.
    if not is_held or owner == ARGV[1] or fence == ARGV[3] then
        keep()
        owner, fence = ARGV[1], tostring(tonumber(fence) + 1)
        expires = string.format('%.6f', now + tonumber(ARGV[2]))
        redis.call('HSET', KEYS[1], 'owner', owner, 'fence', fence, 'expires', expires)
    end
    return {owner, fence, expires, string.format('%.6f', now)}
"""
)

RENEW = (
    _RUN
    + """
    -- ARGV: owner, fence, seconds.
    if owner ~= ARGV[1] or fence ~= ARGV[2] then
        return false
    end
    keep()
    expires = string.format('%.6f', now + tonumber(ARGV[3]))
    redis.call('HSET', KEYS[1], 'expires', expires)
    return expires
"""
)

RELEASE = (
    _RUN
    + """
    -- ARGV: owner, fence.
    if owner == ARGV[1] and fence == ARGV[2] then
        keep()
        redis.call('HSET', KEYS[1], 'owner', '')
    end
"""
)

APPEND = (
    _RUN
    + """
    -- ARGV: owner, fence, after, release, run id, id of this append, summary or '', bodies.
    local append = 'append ' .. ARGV[2]
    if redis.call('HGET', KEYS[1], append) == ARGV[6] then
        -- Its answer was lost, and it was sent again.
        return false
    end
    if owner ~= ARGV[1] or fence ~= ARGV[2] then
        return owner == '' and 'its lease was released' or owner .. ' holds it'
    end
    if length ~= ARGV[3] then
        return 'its journal has ' .. length .. ' entries, not ' .. ARGV[3]
    end
    if ARGV[7] == '' and length == '0' then
        return 'no summary'
    end
    keep()
    local at, last = string.format('%.6f', now), tonumber(length)
    for i = 8, #ARGV do
        last = last + 1
        redis.call('HSET', KEYS[1], last, at .. ' ' .. ARGV[i])
    end
    if ARGV[7] ~= '' then
        redis.call('HSET', KEYS[2], KEYS[1], ARGV[5])
    end
    local changes = {'id', ARGV[5], append, ARGV[6], 'length', last}
    local function set(field, value)
        changes[#changes + 1] = field
        changes[#changes + 1] = value
    end
    if #ARGV > 7 then set('updated', at) end
    if ARGV[7] ~= '' then set('summary', ARGV[7]) end
    if ARGV[4] == '1' then set('owner', '') end
    redis.call('HSET', KEYS[1], unpack(changes))
    return false
"""
)

DELETE = (
    _RUN
    + """
    -- ARGV: id of this deletion, fence of a dead owner.
    if run[7] == ARGV[1] then
        -- Its answer was lost, and it was sent again. There may be a new run by now.
        return {'deleted'}
    end
    if length == '0' then
        return {'missing'}
    end
    if is_held and fence ~= ARGV[2] then
        return {'held', owner, fence, string.format('%.6f', tonumber(expires) - now)}
    end
    -- If its memory is full, a server only continues scripts that have removed something.
    redis.call('HDEL', KEYS[1], 'expires')
    redis.call('HSET', KEYS[1], 'deletion', ARGV[1], 'owner', '', 'length', 0)
    return {'deleted'}
"""
)

SWEEP = """
    -- ARGV: fields left by a deleted run. There may be a new run by now.
    local length = tonumber(redis.call('HGET', KEYS[1], 'length') or '0')
    for _, field in ipairs(ARGV) do
        if (tonumber(field) or 1) > length then
            redis.call('HDEL', KEYS[1], field)
        end
    end
    if length == 0 then
        redis.call('HDEL', KEYS[2], KEYS[1])
    end
"""
