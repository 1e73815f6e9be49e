"""Find and claim the runs of a RedisStore that are due.

Runs with a due time are in sorted sets, one for each workflow and priority, pending or not. So a claim
reads only the runs that are due, however many wait. The script does not know which processes of a host
live, or how long ago the host booted, so the client names the leases that are free.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.store import DueRuns
from effectflow.stores._redis_scripts import RUN, held_of, text_of


@dataclass(frozen=True, slots=True)
class Freed:
    """What the server cannot know about leases.

    Attributes:
        leases: expired leases, each as the key of its run and its fencing token.
        processes: the processes that have ended.
    """

    leases: Sequence[tuple[str, str]] = ()
    processes: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.leases or self.processes)

    @staticmethod
    def among(suspects: Sequence[Sequence[bytes]], processes: Sequence[bytes]) -> Freed:
        """Return which of these leases are free, and which of these processes have ended."""
        return Freed(
            [
                (key.decode(), fence.decode())
                for key, owner, fence, *rest in suspects
                if not _is_held([owner, fence, *rest])
            ],
            [process for process in map(bytes.decode, processes) if _is_dead(process)],
        )


def request_of(due: DueRuns, owners: Sequence[str], freed: Freed) -> str:
    """Return a request to claim runs for these owners, as the script reads it."""
    uptime = Lease.of("", "", 0, seconds=due.seconds, now=0.0).expires_at_uptime
    return json.dumps(
        {
            "now": repr(due.now),
            "seconds": repr(due.seconds),
            "uptime": text_of(uptime),
            "owners": [*owners],
            "workflows": [_limits(name, due) for name in due.workflows],
            "free": freed.leases,
            "dead": freed.processes,
        }
    )


def _limits(workflow: str, due: DueRuns) -> dict[str, object]:
    """Return the limits of a workflow as the script reads them."""
    asked: dict[str, object] = {"name": workflow}
    limit = due.limits.get(workflow)
    if limit is not None and limit.limit is not None:
        asked["at_once"] = limit.limit
    if limit is not None and limit.per_second is not None:
        asked["most"], asked["window"] = limit.window
    return asked


def _is_held(answer: Sequence[bytes]) -> bool:
    held = held_of("", answer)
    return held.lease.is_held(held.now)


def _is_dead(process: str) -> bool:
    """Return whether the process of an owner, as scripts name it, is known to have ended."""
    owner = Owner.parse(f"{process}, )")
    return owner is not None and owner.is_dead()


CLAIM_DUE = (
    RUN
    + """
    -- ARGV: the request as JSON, its id, and the fields of a row.
    local asked = cjson.decode(ARGV[1])
    -- Its answer may have been lost, and it was sent again.
    local answer_key = prefix .. ':answer:' .. ARGV[2]
    local answered = redis.call('GET', answer_key)
    if answered then
        return cmsgpack.unpack(answered)
    end
    local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
    if redis.call('GET', prefix .. ':server') ~= server then
        return {'unplaced', server}
    end

    -- The leases that the caller knows to be free.
    for _, lease in ipairs(asked.free) do
        local run = load(lease[1])
        if run.fence == lease[2] then place(run, true) end
    end
    if #asked.dead > 0 then
        local is_dead = {}
        for _, process in ipairs(asked.dead) do
            is_dead[process] = true
            redis.call('ZREM', prefix .. ':processes', process)
        end
        for _, workflow in ipairs(redis.call('SMEMBERS', prefix .. ':workflows')) do
            for _, key in ipairs(redis.call('ZRANGE', prefix .. ':held:' .. workflow, 0, -1)) do
                local run = load(key)
                if is_dead[process_of(run.owner) or ''] then place(run, true) end
            end
        end
    end

    -- How many runs of each kind may be claimed.
    local due, taken, rows = tonumber(asked.now), 0, {}
    local suspects, next_due = {}, nil
    local levels, queues, room = {}, {}, {}
    for _, limit in ipairs(asked.workflows) do
        local workflow = limit.name
        local held = prefix .. ':held:' .. workflow
        for _, key in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', now, 'LIMIT', 0, 100)) do
            local run = load(key)
            if run.place == held then
                suspects[#suspects + 1] = {key, unpack(lease_of(run))}
            else
                redis.call('ZREM', held, key)
            end
        end
        local at_once, starts = math.huge, math.huge
        if limit.at_once then
            at_once = limit.at_once - redis.call('ZCARD', held)
        end
        if limit.most then
            starts = limit.most
            local last = redis.call('LRANGE', prefix .. ':starts:' .. workflow, -limit.most, -1)
            for _, started in ipairs(last) do
                -- Later ones are from before the clock was set back.
                local at = tonumber(started)
                if now - limit.window < at and at <= now then starts = starts - 1 end
            end
        end
        room[workflow] = {at_once = at_once, starts = starts, most = limit.most}
        local priorities = prefix .. ':priorities:' .. workflow
        for _, priority in ipairs(redis.call('ZRANGE', priorities, 0, -1)) do
            local is_used = false
            for _, kind in ipairs({':pending:', ':due:'}) do
                local name = prefix .. kind .. priority .. ':' .. workflow
                if redis.call('EXISTS', name) == 1 then
                    is_used = true
                    local level = tonumber(priority)
                    if not queues[level] then
                        queues[level] = {}
                        levels[#levels + 1] = level
                    end
                    table.insert(queues[level], {name = name, workflow = workflow,
                                                 is_pending = kind == ':pending:'})
                    local later = redis.call('ZRANGEBYSCORE', name, '(' .. asked.now, '+inf',
                                             'WITHSCORES', 'LIMIT', 0, 1)
                    if later[2] and (not next_due or tonumber(later[2]) < tonumber(next_due)) then
                        next_due = later[2]
                    end
                end
            end
            if not is_used then
                redis.call('ZREM', priorities, priority)
            end
        end
    end
    table.sort(levels, function(a, b) return a > b end)

    -- The runs to claim: those with a higher priority first, then those that have been due for longer.
    local wanted = #asked.owners
    local function candidates(level)
        local found = {}
        for _, queue in ipairs(queues[level]) do
            local due_runs = redis.call('ZRANGEBYSCORE', queue.name, '-inf', asked.now, 'WITHSCORES',
                                        'LIMIT', 0, wanted - taken)
            for i = 1, #due_runs, 2 do
                found[#found + 1] = {key = due_runs[i], due = tonumber(due_runs[i + 1]), queue = queue}
            end
        end
        table.sort(found, function(a, b)
            if a.due ~= b.due then return a.due < b.due end
            return a.key < b.key
        end)
        return found
    end
    local function claim(one)
        local run, limit = load(one.key), room[one.queue.workflow]
        if run.place ~= one.queue.name or run.length == '0' then
            redis.call('ZREM', one.queue.name, one.key)
            return true
        end
        if limit.at_once < 1 or (one.queue.is_pending and limit.starts < 1) then
            return false
        end
        taken = taken + 1
        limit.at_once = limit.at_once - 1
        if one.queue.is_pending and limit.most then
            limit.starts = limit.starts - 1
            local starts = prefix .. ':starts:' .. one.queue.workflow
            redis.call('RPUSH', starts, string.format('%.6f', now))
            redis.call('LTRIM', starts, -limit.most, -1)
        end
        local row = redis.call('HMGET', one.key, unpack(ARGV, 3))
        keep(run)
        run.owner, run.fence = asked.owners[taken], new_fence(run)
        extend(run, asked.seconds, asked.uptime)
        rows[#rows + 1] = {row, lease_of(run)}
        return false
    end
    for _, level in ipairs(levels) do
        local is_stale = true
        while is_stale and taken < wanted do
            is_stale = false
            for _, one in ipairs(candidates(level)) do
                if taken < wanted then
                    is_stale = claim(one) or is_stale
                end
            end
        end
    end

    local processes = redis.call('ZRANGE', prefix .. ':processes', 0, -1)
    local answer = {'claimed', rows, next_due or '', suspects, processes}
    if taken > 0 then
        redis.call('SET', answer_key, cmsgpack.pack(answer), 'EX', 60)
    end
    return answer
"""
)

PLACE = (
    RUN
    + """
    -- ARGV: keys of runs.
    for _, key in ipairs(ARGV) do
        local run = load(key)
        place(run)
        local process = process_of(run.owner)
        if process then
            redis.call('ZADD', prefix .. ':processes', run.expires, process)
        end
    end
"""
)
