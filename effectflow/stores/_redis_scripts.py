"""The Lua scripts of `RedisStore`, each an atomic operation on the server.

The rules are in Python. It reads a run, computes what changes, and lets `APPLY` write that unless the run
has changed since. The renewal of many leases is a script of its own, because it must not fail for all of
them if one has changed.

A server that is killed while it writes to its append-only file may leave only the first writes of a
script there. It ignores them when it starts, but most versions keep them in the file and execute
them at the start after that, just before the transaction that was written next. Single commands
that follow are lost unless a transaction follows too (valkey-io/valkey#4342). Therefore:

- All that counts of a run is in the fields `state` and `held`, which each change writes last, together
  and completely. What it writes before has no effect until then, even if it is written once more. So the
  next change of a run undoes what such repeated writes may do.
- They are written by HSET, which is written to the file even if it changes nothing, unlike ZADD.
- Each script has at least two such writes, which makes it a transaction.
- What a deleted or truncated run has left is removed by another script.
- The sorted sets follow from the hashes, and are completed after each start of a server.
"""

from __future__ import annotations

NOW = b"\0"
"""The first byte of an argument of a write that begins with the time of the server instead."""

APPLY = """
    -- KEYS: hashes, each with a field that must have a value. ARGV: these fields and values, then the
    -- writes, each after the number of its arguments. Returns the time, or false if nothing was written.
    for i, key in ipairs(KEYS) do
        if (redis.call('HGET', key, ARGV[2 * i - 1]) or '') ~= ARGV[2 * i] then
            return false
        end
    end
    local time = redis.call('TIME')
    local now = string.format('%.6f', time[1] + time[2] / 1000000)
    local at = 2 * #KEYS + 1
    while at <= #ARGV do
        local write, last = {}, at + ARGV[at]
        for i = at + 1, last do
            local argument = ARGV[i]
            if string.byte(argument) == 0 then
                argument = now .. string.sub(argument, 2)
            end
            write[#write + 1] = argument
        end
        redis.call(unpack(write))
        at = last + 1
    end
    return now
"""

RENEW = """
    -- KEYS: the set of processes, and runs. ARGV: seconds, the uptime at the end, the field `held` of
    -- each run, and the processes that hold them. Returns when the leases expire, and the positions of
    -- those that were renewed.
    local time = redis.call('TIME')
    local expires = string.format('%.6f', time[1] + time[2] / 1000000 + ARGV[1])
    local renewed = {expires}
    for i = 2, #KEYS do
        -- A damaged run must not keep the others from being renewed.
        local fields = redis.pcall('HMGET', KEYS[i], 'held', 'state')
        if not fields.err and fields[1] == ARGV[i + 1] and fields[2] ~= '' then
            redis.call('HSET', KEYS[i], 'until', expires .. ' ' .. ARGV[2])
            redis.call('HSET', KEYS[i], 'held', fields[1], 'state', fields[2] or '')
            renewed[#renewed + 1] = i - 2
        end
    end
    for i = #KEYS + 2, #ARGV do
        redis.call('ZADD', KEYS[1], expires, ARGV[i])
    end
    return renewed
"""

FORGET = """
    -- KEYS: sets of runs, all but the last, which is the set that has their name. ARGV: the command that
    -- removes from that, and the name there.
    for i = 1, #KEYS - 1 do
        if redis.call('EXISTS', KEYS[i]) == 1 then
            return
        end
    end
    redis.call(ARGV[1], KEYS[#KEYS], ARGV[2])
"""
