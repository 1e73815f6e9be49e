"""The Lua scripts of `RedisStore`, each an atomic operation on the server, and how to read their answers.

A run is one hash. It has the lease, the summary, the entries by their numbers, and the messages.

- `length` is the number of entries: fields with higher numbers do not count.
- `born` is the fencing token of the claim or creation that began the run.
- `due` is the `due_at` of the summary, and `parent` the key of its parent.
- `mailbox` has the numbers of the messages that were not taken, and `messages` the number of the newest
  one. Messages with higher numbers do not count.
- `message N` begins with the 16 bytes of the request that sent it.
- `received HASH` of a topic and a key has N and the same 16 bytes. It does not count if message N begins
  with other bytes.
- `taken` has the messages that the last append took. The next append shortens them to those 16 bytes,
  because by then the last append is certainly in the file of the server.

The index has the keys of all runs. One counter issues the fencing tokens of all runs, so that a deleted
run leaves nothing behind and a stale writer cannot write to a new one. Each script receives these keys
as KEYS[1] to KEYS[3], and the prefix of the others as KEYS[4].

A server that is killed while it writes to its append-only file may leave only the first writes of a
script there. It ignores them when it starts, but most versions keep them in the file and execute
them at the start after that, just before the transaction that was written next. Single commands
that follow are lost unless a transaction follows too (valkey-io/valkey#4342). Therefore:

- The first writes of a script do no harm, even if all of its writes follow once more: they set
  fields and never increment them, and the write that makes the others count comes last. They use
  HSET, which is written to the file even if it changes nothing, unlike ZADD.
- A script that changes a run first writes everything that counts again. So the next script for a run
  undoes what such repeated writes may do.
- Each script has at least two writes, which makes it a transaction.
- Only a run without entries expires, some time after its lease, because its owner may have died. The
  first append removes the expiry before the write that makes the others count.
- Sorted sets have the runs that are due and the runs that are held. They follow from the hashes, and the
  first worker after each start of a server rebuilds them. `place` of a run is the set that it is in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import Message, Record, RunInfo, RunStatus, RunSummary
from effectflow.stores._servers import Held

LAYOUT = 2
"""The version of the keys, fields and scripts. Version 1 was never released."""

LEASE_FIELDS = frozenset({b"owner", b"fence", b"expires", b"uptime", b"length"})
"""The fields of a run that is claimed and has no entries."""

RUN = """
    local time = redis.call('TIME')
    local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
    local prefix = KEYS[4]
    local no_request = string.rep('\\0', 16)

    local names = {'owner', 'fence', 'expires', 'uptime', 'length', 'summary', 'updated', 'born', 'due',
                   'parent', 'messages', 'mailbox', 'taken', 'id', 'place'}
    local defaults = {fence = '0', expires = '0', length = '0', messages = '0'}

    local function load(key)
        local values, run = redis.call('HMGET', key, unpack(names)), {key = key}
        for i, name in ipairs(names) do
            run[name] = values[i] or defaults[name] or ''
        end
        run.is_there = values[1] and true
        return run
    end

    local run = load(KEYS[1])

    local function lease_of(run)
        return {run.owner, run.fence, run.expires, run.uptime, string.format('%.6f', now)}
    end

    -- Write again all that counts. A run without entries has only a lease.
    local function keep(run)
        local kept = {}
        for i = 1, run.length == '0' and 5 or #names - 2 do
            kept[#kept + 1] = names[i]
            kept[#kept + 1] = run[names[i]]
        end
        local append = 'append ' .. run.fence
        kept[#kept + 1] = append
        kept[#kept + 1] = redis.call('HGET', run.key, append) or ''
        redis.call('HSET', run.key, unpack(kept))
    end

    local function facts_of(run)
        local is_json, facts = pcall(cjson.decode, run.summary)
        return is_json and type(facts) == 'table' and facts or {}
    end

    -- Put a run into the set that it belongs to. `is_free` says that its lease is known to be free.
    local function place(run, is_free)
        local name, score = '', nil
        local facts = facts_of(run)
        if run.length ~= '0' and facts.workflow then
            if run.owner ~= '' and not is_free then
                name, score = prefix .. ':held:' .. facts.workflow, run.expires
                redis.call('SADD', prefix .. ':workflows', facts.workflow)
            elseif run.due ~= '' and not facts.is_nested then
                local kind = facts.status == 'pending' and ':pending:' or ':due:'
                local priority = string.format('%.0f', facts.priority)
                name, score = prefix .. kind .. priority .. ':' .. facts.workflow, run.due
                redis.call('ZADD', prefix .. ':priorities:' .. facts.workflow, priority, priority)
            end
        end
        if run.place ~= '' and run.place ~= name then
            redis.call('ZREM', run.place, run.key)
        end
        if name ~= '' then
            redis.call('ZADD', name, score, run.key)
        end
        if run.place ~= name then
            redis.call('HSET', run.key, 'place', name)
            run.place = name
        end
    end

    -- The part of an owner that names its process: all but the claim.
    local function process_of(owner)
        return string.match(owner, '^(pid %d+ on .* %([^,]*), [^,]*%)$')
    end

    local function extend(run, seconds, until_uptime)
        run.expires = string.format('%.6f', now + tonumber(seconds))
        run.uptime = until_uptime
        redis.call('HSET', run.key, 'owner', run.owner, 'fence', run.fence, 'expires', run.expires,
                   'uptime', run.uptime, 'length', run.length)
        if run.length == '0' then
            local last = math.max(tonumber(run.expires), now)
            redis.call('EXPIREAT', run.key, math.ceil(last) + 3600)
        else
            place(run)
        end
        local process = process_of(run.owner)
        local known = process and redis.call('ZSCORE', prefix .. ':processes', process)
        if process and (not known or tonumber(known) < tonumber(run.expires)) then
            redis.call('ZADD', prefix .. ':processes', run.expires, process)
            redis.call('ZREMRANGEBYSCORE', prefix .. ':processes', '-inf', now - 3600)
        end
    end

    local function new_fence(run)
        local last = tonumber(redis.call('GET', KEYS[3]) or '0')
        local fence = string.format('%.0f', math.max(last, tonumber(run.fence)) + 1)
        redis.call('SET', KEYS[3], fence)
        return fence
    end

    local function announce(run_id)
        redis.call('PUBLISH', prefix .. ':changes', run_id)
    end

    local function due_at_once(run, facts)
        -- As `due_at_once` of the contract says.
        local since = now - 7200
        if not facts.is_nested and (run.due == '' or tonumber(run.due) > since) then
            run.due = string.format('%.6f', since)
        end
    end

    local function has_ended(facts)
        return facts.status == 'completed' or facts.status == 'cancelled'
    end

    -- Put a message into the mailbox of a run, after `keep`.
    local function put(run, topic, key, body, request)
        local facts = facts_of(run)
        local is_pending = facts.status == 'pending' or facts.status == 'failed'
        if facts.status == 'suspended' or (topic == 'cancel' and is_pending) then
            due_at_once(run, facts)
        end
        local number = string.format('%.0f', tonumber(run.messages) + 1)
        local head = string.format('%.6f %d %d', now, #topic, #key)
        local message = request .. head .. '\\n' .. topic .. key .. body
        run.messages, run.mailbox = number, run.mailbox .. ' ' .. number
        local changes = {'messages', run.messages, 'mailbox', run.mailbox, 'due', run.due,
                         'message ' .. number, message}
        if request ~= no_request then
            changes[#changes + 1] = 'received ' .. redis.sha1hex(#topic .. ' ' .. topic .. key)
            changes[#changes + 1] = number .. ' ' .. request
        end
        redis.call('HSET', run.key, unpack(changes))
        place(run, string.find(run.place, prefix .. ':held:', 1, true) ~= 1)
        announce(run.id)
    end

    -- Tell the parent of a run to look at it, and the parents within which that is nested.
    local function notify(parent, run_id)
        -- A bound in case that damage makes a run its own parent.
        for _ = 1, 1000 do
            local run = parent ~= '' and load(parent)
            local facts = run and facts_of(run)
            if not run or run.length == '0' or has_ended(facts) then
                return
            end
            keep(run)
            put(run, 'notice', run_id, '', no_request)
            if not facts.is_nested then
                return
            end
            parent, run_id = run.parent, run.id
        end
    end

    local function announced(run)
        place(run)
        announce(run.id)
        return false
    end
"""

FIND_LAYOUT = """
    -- ARGV: the newest layout. Returns that of the runs, which is the newest one if there are none.
    local key = KEYS[4] .. ':layout'
    local layout = redis.call('GET', key)
    if not layout and redis.call('EXISTS', KEYS[2]) == 0 then
        layout = ARGV[1]
        redis.call('SET', key, layout)
        redis.call('SET', key, layout)
    end
    return layout or '1'
"""

CLAIM = (
    RUN
    + """
    -- ARGV: owner, seconds, uptime at the end, fence of a lease that is free.
    if run.owner == '' or run.owner == ARGV[1] or run.fence == ARGV[4] then
        keep(run)
        run.owner, run.fence = ARGV[1], new_fence(run)
        extend(run, ARGV[2], ARGV[3])
    end
    return lease_of(run)
"""
)

RENEW = (
    RUN
    + """
    -- ARGV: owner, fence, seconds, uptime at the end.
    if run.owner ~= ARGV[1] or run.fence ~= ARGV[2] then
        local left = run.is_there and 'released' or 'gone'
        return {'refused', run.owner ~= '' and 'held ' .. run.owner or left}
    end
    keep(run)
    extend(run, ARGV[3], ARGV[4])
    return {'renewed', run.expires}
"""
)

RELEASE = (
    RUN
    + """
    -- ARGV: owner, fence.
    if run.owner == ARGV[1] and run.fence == ARGV[2] then
        keep(run)
        if run.length == '0' then
            redis.call('DEL', run.key)
        else
            run.owner = ''
            redis.call('HSET', run.key, 'owner', '')
            place(run)
        end
    end
"""
)

CREATE = (
    RUN
    + """
    -- ARGV: fence of a lease that is free, run id, id of this request, summary, due, parent, bodies.
    if run.length ~= '0' then
        -- Its answer may have been lost, and it was sent again.
        return redis.call('HGET', run.key, 'append ' .. run.born) == ARGV[3] and 'created' or 'exists'
    end
    if run.owner ~= '' and run.fence ~= ARGV[1] then
        return lease_of(run)
    end
    keep(run)
    local at = string.format('%.6f', now)
    for i = 7, #ARGV do
        redis.call('HSET', run.key, i - 6, at .. ' ' .. ARGV[i])
    end
    redis.call('HSET', KEYS[2], run.key, ARGV[2])
    redis.call('PERSIST', run.key)
    run.fence = new_fence(run)
    run.owner, run.born, run.updated, run.id = '', run.fence, at, ARGV[2]
    run.length, run.summary, run.due, run.parent = tostring(#ARGV - 6), ARGV[4], ARGV[5], ARGV[6]
    run.messages, run.mailbox, run.taken = '0', '', ''
    local changes = {'id', run.id, 'append ' .. run.fence, ARGV[3]}
    for i = 1, #names - 2 do
        changes[#changes + 1] = names[i]
        changes[#changes + 1] = run[names[i]]
    end
    redis.call('HSET', run.key, unpack(changes))
    announced(run)
    return 'created'
"""
)

APPEND = (
    RUN
    + """
    -- ARGV: owner, fence, after, release, run id, id of this append, summary or '', due, parent, whether
    -- to notify that, last message seen or '', messages to take, bodies.
    local append = 'append ' .. ARGV[2]
    if redis.call('HGET', run.key, append) == ARGV[6] then
        -- Its answer was lost, and it was sent again.
        return false
    end
    if run.owner ~= '' and (run.owner ~= ARGV[1] or run.fence ~= ARGV[2]) then
        return 'held ' .. run.owner
    end
    if run.length ~= ARGV[3] then
        return run.length == '0' and 'gone' or 'length ' .. run.length
    end
    if run.owner == '' then
        return 'released'
    end
    local is_first, has_summary = run.length == '0', ARGV[7] ~= ''
    if is_first and not has_summary then
        return 'unsummarized'
    end
    local mailbox = ' ' .. (is_first and '' or run.mailbox) .. ' '
    for number in string.gmatch(ARGV[12], '%d+') do
        local first, last = string.find(mailbox, ' ' .. number .. ' ', 1, true)
        if not first then
            return 'taken'
        end
        mailbox = string.sub(mailbox, 1, first) .. string.sub(mailbox, last + 1)
    end

    keep(run)
    local before = is_first and '' or run.taken
    for number in string.gmatch(before, '%d+') do
        local message = redis.call('HGET', run.key, 'message ' .. number) or no_request
        if string.sub(message, 1, 16) == no_request then
            redis.call('HDEL', run.key, 'message ' .. number)
        else
            redis.call('HSET', run.key, 'message ' .. number, string.sub(message, 1, 16))
        end
    end
    local at, last = string.format('%.6f', now), tonumber(run.length)
    for i = 13, #ARGV do
        last = last + 1
        redis.call('HSET', run.key, last, at .. ' ' .. ARGV[i])
    end
    if has_summary then
        redis.call('HSET', KEYS[2], run.key, ARGV[5])
        if ARGV[10] == '1' then
            notify(ARGV[9], ARGV[5])
        end
    end
    local changes = {append, ARGV[6]}
    local function set(field, value)
        run[field] = value
        changes[#changes + 1] = field
        changes[#changes + 1] = value
    end
    set('id', ARGV[5])
    set('length', tostring(last))
    if #ARGV > 12 then set('updated', at) end
    if is_first then
        redis.call('PERSIST', run.key)
        set('born', run.fence)
        set('messages', '0')
        set('mailbox', '')
        set('taken', '')
    elseif ARGV[12] ~= '' or before ~= '' then
        set('mailbox', string.gsub(string.gsub(mailbox, '^ +', ' '), ' +$', ''))
        set('taken', ARGV[12])
    end
    if has_summary then
        set('summary', ARGV[7])
        set('parent', ARGV[9])
        run.due = ARGV[8]
        local facts = facts_of(run)
        if has_ended(facts) then set('mailbox', '') end
        local newest = string.match(run.mailbox, '(%d+)$')
        if ARGV[11] ~= '' and newest and tonumber(newest) > tonumber(ARGV[11]) then
            due_at_once(run, facts)
        end
        set('due', run.due)
    end
    if ARGV[4] == '1' then set('owner', '') end
    redis.call('HSET', run.key, unpack(changes))
    if has_summary then
        return announced(run)
    elseif ARGV[4] == '1' then
        place(run)
    end
    return false
"""
)

SEND = (
    RUN
    + """
    -- ARGV: topic, key, body, id of this request.
    local facts = facts_of(run)
    if run.length == '0' then
        return 'unknown'
    end
    local request = ARGV[4]
    if ARGV[1] == 'notice' then
        request = no_request
    else
        local received = 'received ' .. redis.sha1hex(#ARGV[1] .. ' ' .. ARGV[1] .. ARGV[2])
        local earlier = redis.call('HGET', run.key, received) or ''
        local number, by = string.match(earlier, '^(%d+) (.*)$')
        if number and tonumber(number) <= tonumber(run.messages) then
            local message = redis.call('HGET', run.key, 'message ' .. number) or ''
            if string.sub(message, 1, 16) == by then
                -- Its answer may have been lost, and it was sent again.
                return by == request and 'sent' or has_ended(facts) and facts.status or 'received'
            end
        end
    end
    if has_ended(facts) then
        return facts.status
    end
    keep(run)
    if facts.is_nested then
        notify(run.parent, run.id)
    end
    put(run, ARGV[1], ARGV[2], ARGV[3], request)
    return 'sent'
"""
)

FIND = """
    -- ARGV: the workflow and the statuses to find as JSON, the number of the fields of a row, these, and
    -- keys of runs. What cannot be read is found, so that the caller can warn of it.
    local asked, count, rows = cjson.decode(ARGV[1]), tonumber(ARGV[2]), {}
    local fields, wanted = {unpack(ARGV, 3, 2 + count)}, {}
    for _, status in ipairs(asked.statuses) do wanted[status] = true end
    local function is_wanted(summary)
        local is_json, facts = pcall(cjson.decode, summary or '')
        if not is_json or type(facts) ~= 'table' then
            return true
        end
        return (asked.workflow == cjson.null or facts.workflow == asked.workflow)
            and (#asked.statuses == 0 or wanted[facts.status])
    end
    for i = 3 + count, #ARGV do
        local length, summary = unpack(redis.call('HMGET', ARGV[i], 'length', 'summary'))
        if (length or '0') ~= '0' and is_wanted(summary) then
            rows[#rows + 1] = redis.call('HMGET', ARGV[i], unpack(fields))
        end
    end
    return rows
"""

MAILBOX = (
    RUN
    + """
    -- ARGV: number after which to begin.
    local messages = {}
    if run.length ~= '0' then
        for number in string.gmatch(run.mailbox, '%d+') do
            if tonumber(number) > tonumber(ARGV[1]) then
                messages[#messages + 1] = number
                messages[#messages + 1] = redis.call('HGET', run.key, 'message ' .. number) or ''
            end
        end
    end
    return messages
"""
)

TRUNCATE = (
    RUN
    + """
    -- ARGV: owner, fence, after, summary, due, parent.
    if run.owner ~= ARGV[1] or run.fence ~= ARGV[2] then
        return {'held', run.owner}
    end
    if tonumber(ARGV[3]) < 1 or tonumber(run.length) < tonumber(ARGV[3]) then
        return {'length', run.length}
    end
    keep(run)
    local newest = redis.call('HGET', run.key, ARGV[3]) or ''
    local at = string.match(newest, '^[%d.]+') or string.format('%.6f', now)
    run.summary, run.due, run.length = ARGV[4], ARGV[5], ARGV[3]
    redis.call('HSET', run.key, 'summary', run.summary, 'due', run.due, 'parent', ARGV[6],
               'updated', at, 'length', run.length)
    place(run)
    return {'length', run.length}
"""
)

DELETE = (
    RUN
    + """
    -- ARGV: `born` of the run, and fence of a lease that is free; or that of the caller, and its owner.
    -- There may be a new run by now.
    if run.length == '0' or run.born ~= ARGV[1] then
        return {'missing'}
    end
    local is_known = run.fence == ARGV[2] and run.owner == (ARGV[3] or run.owner)
    if not is_known and (run.owner ~= '' or ARGV[3]) then
        return {'held', unpack(lease_of(run))}
    end
    -- If its memory is full, a server only continues scripts that have removed something.
    redis.call('HDEL', run.key, 'expires', 'uptime')
    if run.place ~= '' then
        redis.call('ZREM', run.place, run.key)
    end
    redis.call('HSET', run.key, 'owner', '', 'place', '', 'length', 0)
    announce(run.id)
    return {'deleted'}
"""
)

SWEEP = """
    -- ARGV: fields left by a deleted or truncated run. There may be a new run by now.
    local length = tonumber(redis.call('HGET', KEYS[1], 'length') or '0')
    for _, field in ipairs(ARGV) do
        if (tonumber(field) or 1) > length then
            redis.call('HDEL', KEYS[1], field)
        end
    end
    if length == 0 then
        redis.call('HDEL', KEYS[2], KEYS[1])
        if (redis.call('HGET', KEYS[1], 'owner') or '') == '' then
            redis.call('DEL', KEYS[1])
        end
    end
"""


def record_of(number: int, entry: bytes) -> Record | None:
    """Return the record of an entry; None if its time cannot be read."""
    at, _, body = entry.partition(b" ")
    try:
        return Record(number, float(at), body)
    except ValueError:
        return None


class Row(NamedTuple):
    """The fields of a run, besides its entries, as the server returns them; None if one is missing."""

    id: bytes
    length: bytes
    summary: bytes
    updated: bytes
    owner: bytes | None
    fence: bytes | None
    expires: bytes | None
    uptime: bytes | None
    due: bytes | None


def info_of(row: Row) -> RunInfo:
    """Return one line about a run. Raise CorruptCheckpoint if it cannot be read."""
    run_id = row.id.decode()
    try:
        fields = json.loads(row.summary)
        status = RunStatus.stored(fields.pop("status"), run_id)
        summary = RunSummary(**fields, status=status, due_at=number_of(row.due))
        lease = None
        if row.owner:
            owner, expires, uptime = (
                row.owner.decode(),
                float(row.expires or 0),
                number_of(row.uptime),
            )
            lease = Lease(run_id, owner, int(row.fence or 0), expires, uptime)
        return RunInfo(run_id, summary, float(row.updated), int(row.length), lease)
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptCheckpoint(run_id, f"its summary is damaged: {error}") from error


def held_of(run_id: str, answer: Sequence[bytes]) -> Held:
    """Return the lease and the time in the answer of a script."""
    owner, fence, expires, uptime, now = answer
    lease = Lease(run_id, owner.decode(), int(fence), float(expires), number_of(uptime))
    return Held(lease, float(now))


def message_of(run_id: str, number: int, stored: bytes) -> Message:
    """Return a message as scripts write it: the id of its request, time, lengths, and the texts."""
    head, _, texts = stored[16:].partition(b"\n")
    try:
        sent_at, topic, key = head.split(b" ")
        middle, end = int(topic), int(topic) + int(key)
        names = texts[:middle].decode(), texts[middle:end].decode()
        return Message(number, *names, float(sent_at), texts[end:])
    except ValueError as error:
        raise CorruptCheckpoint(run_id, f"its message {number} is damaged: {error}") from error


def text_of(number: float | None) -> str:
    return "" if number is None else str(number)


def number_of(text: bytes | None) -> float | None:
    return float(text) if text else None
