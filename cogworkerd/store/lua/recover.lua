-- Hand the jobs of a dead identity to the queues of suspects, in their order, at the end that is popped next. Only the
-- death of a ward, which had one job, counts.
-- KEYS 1 list    its in-progress list        ARGV 1 identity
--      2 hash    its presence key                 2 age in seconds beyond which a beat is too old
--      3 set     inprogress_identities            3 "1": its processes are seen to be gone, ask for no presence key
--      4 hash    last_beat                        4 the caller's time, should the server not tell its own
--      5 list    repeat_orphans                   5 how many orphanings are allowed
--      6 set     queues                           6 lifetime of the counter, seconds
--      7 zset    dead                             7 seconds for which locks are kept
--      8 set     x:raw_burials
--      9 set     x:wards
--      then for each job, newest first:
--           list    its queue of suspects     then for each job: the job as listed, the name of that queue, its jid,
--           string  orphanings:<jid>          "1" if its running lock is taken again
--           string  its unique lock
--           string  its running lock; x:nothing for one that it has not
-- Answers {state, requeued, over the limit, left}: state is "alive", "recovered" (the list is empty), "left" (not
-- empty) or "forgotten" (empty, and the identity was dropped since its beat is old).
--@include keep
--@include listed
--@include orphanings

local time = redis.pcall('TIME')
local now = tonumber(time.err and ARGV[4] or time[1])
local beat = redis.pcall('HGET', KEYS[4], ARGV[1])
local stamp = type(beat) == 'string' and string.match(beat, '^%d+%.?%d*$') and tonumber(beat) or nil
local old = stamp == nil or now - stamp > tonumber(ARGV[2])
local present = redis.call('EXISTS', KEYS[2]) == 1
if ARGV[3] ~= '1' and (present or not old) then return {'alive', 0, 0, redis.call('LLEN', KEYS[1])} end

local function refused(reply)
  return type(reply) == 'table' and reply.err ~= nil
end

-- Over the limit: to the list of repeat orphans; where that is unusable, to dead as it is, to be completed later.
local function set_aside(job)
  if not refused(redis.pcall('RPUSH', KEYS[5], job)) then return true end
  redis.pcall('SADD', KEYS[8], job)
  return not refused(redis.pcall('ZADD', KEYS[7], now, job))
end

local known = redis.pcall('SISMEMBER', KEYS[9], ARGV[1]) == 1
local requeued, over = 0, 0
for i = 0, (#KEYS - 9) / 4 - 1 do
  local job, name, jid, retake = unpack(ARGV, 8 + 4 * i, 11 + 4 * i)
  local queue, counter = KEYS[10 + 4 * i], KEYS[11 + 4 * i]
  if listed(KEYS[1], job) then
    local count = known and orphanings(counter) or 0
    local repeated = count > tonumber(ARGV[5])
    local moved
    if repeated then moved = set_aside(job) else moved = not refused(redis.pcall('RPUSH', queue, job)) end
    -- What cannot be moved goes to the back of this list, and is tried again on the next pass.
    if not moved then redis.call('RPUSH', KEYS[1], job) end
    redis.call('LREM', KEYS[1], 1, job)
    if moved then
      if known then redis.pcall('SET', counter, count, 'EX', ARGV[6]) end
      if repeated then
        over = over + 1
      else
        requeued = requeued + 1
        redis.pcall('SADD', KEYS[6], name)
        keep_all(12 + 4 * i, 13 + 4 * i, jid, ARGV[7], retake)
      end
    end
  end
end
local left = redis.call('LLEN', KEYS[1])
if left > 0 then return {'left', requeued, over, left} end
if present or not old then return {'recovered', requeued, over, 0} end
redis.call('SREM', KEYS[3], ARGV[1])
redis.pcall('SREM', KEYS[9], ARGV[1])
redis.pcall('HDEL', KEYS[4], ARGV[1])
return {'forgotten', requeued, over, 0}
