-- Requeue the jobs of a dead identity, in their order, at the end that is popped next.
-- KEYS 1 list    its in-progress list        ARGV 1 identity
--      2 hash    its presence key                 2 age in seconds beyond which a beat is too old
--      3 set     inprogress_identities            3 "1": its processes are seen to be gone, ask for no presence key
--      4 hash    last_beat                        4 the caller's time, should the server not tell its own
--      5 list    repeat_orphans                   5 how many orphanings are allowed
--      6 set     queues                           6 lifetime of the counter, seconds
--      then for each job, newest first:      then for each job: the job as listed, the name of its queue
--           list    its queue
--           string  orphanings:<jid>
-- Answers {state, requeued, over the limit, left}: state is "alive", "recovered" (the list is empty), "left" (not
-- empty) or "forgotten" (empty, and the identity was dropped since its beat is old).

local time = redis.pcall('TIME')
local now = tonumber(time.err and ARGV[4] or time[1])
local beat = redis.pcall('HGET', KEYS[4], ARGV[1])
local stamp = type(beat) == 'string' and tonumber(beat) or nil
local old = stamp == nil or now - stamp > tonumber(ARGV[2])
local present = redis.call('EXISTS', KEYS[2]) == 1
if ARGV[3] ~= '1' and (present or not old) then return {'alive', 0, 0, redis.call('LLEN', KEYS[1])} end

local requeued, over = 0, 0
for i = 1, (#KEYS - 6) / 2 do
  local job, name = ARGV[5 + 2 * i], ARGV[6 + 2 * i]
  local queue, counter = KEYS[5 + 2 * i], KEYS[6 + 2 * i]
  if redis.call('LPOS', KEYS[1], job) then
    local stored = redis.pcall('GET', counter)
    local count = (type(stored) == 'string' and tonumber(stored) or 0) + 1
    local target = count > tonumber(ARGV[5]) and KEYS[5] or queue
    local pushed = redis.pcall('RPUSH', target, job)
    -- What cannot be pushed goes to the back of this list, and is tried again on the next pass.
    if type(pushed) == 'table' then redis.call('RPUSH', KEYS[1], job) end
    redis.call('LREM', KEYS[1], 1, job)
    if type(pushed) ~= 'table' then
      redis.pcall('SET', counter, count, 'EX', ARGV[6])
      if target == queue then
        requeued = requeued + 1
        redis.pcall('SADD', KEYS[6], name)
      else
        over = over + 1
      end
    end
  end
end
local left = redis.call('LLEN', KEYS[1])
if left > 0 then return {'left', requeued, over, left} end
if present or not old then return {'recovered', requeued, over, 0} end
redis.call('SREM', KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
return {'forgotten', requeued, over, 0}
