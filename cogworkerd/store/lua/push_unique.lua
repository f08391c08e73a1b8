-- Push one unique job: its lock and its push are one step, so that there is never a lock without a job.
-- KEYS 1 string  its unique lock             ARGV 1 jid
--      2 any     its queue, or schedule           2 lifetime of the lock, seconds
--      3 hash    status:<jid>, or nothing         3 the job
--                                                 4 when it is due, or "": now
--                                                 5 lifetime of the status, seconds
--                                                 6... its names and values in turn
-- Answers 1, or 0 if the lock is held: the job is a duplicate.

if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) then return 0 end
local pushed
if ARGV[4] == '' then
  pushed = redis.pcall('LPUSH', KEYS[2], ARGV[3])
else
  pushed = redis.pcall('ZADD', KEYS[2], ARGV[4], ARGV[3])
end
if type(pushed) == 'table' then
  redis.call('DEL', KEYS[1])
  return pushed
end
if KEYS[3] then
  redis.pcall('HSET', KEYS[3], unpack(ARGV, 6))
  redis.pcall('EXPIRE', KEYS[3], ARGV[5])
end
return 1
