-- The last step of a stop: requeue what is left of the own list, in order, at the end that is popped next; leave.
-- KEYS 1 list    own in-progress list        ARGV 1 identity
--      2 hash    presence key                     2 "1": forget the identity (every child left in order)
--      3 hash    workers key                      3 seconds for which locks are kept
--      4 set     processes                        4 how many jobs only lack their ack
--      5 set     inprogress_identities            then these jobs
--      6 hash    last_beat                        then, newest first, for each job to requeue: the job, the name of
--      7 string  x:look:<identity>                its queue, its jid, "1" if its running lock is taken again
--      8 set     queues
--      then for each job to requeue: its queue, its unique lock, its running lock; x:nothing for one that it has not
-- Answers {requeued, left on the list}.
--@include keep
--@include listed

local acks = tonumber(ARGV[4])
for i = 5, 4 + acks do redis.call('LREM', KEYS[1], 1, ARGV[i]) end
local requeued = 0
for i = 0, (#KEYS - 8) / 3 - 1 do
  local job, name, jid, retake = unpack(ARGV, 5 + acks + 4 * i, 8 + acks + 4 * i)
  local queue = 9 + 3 * i
  if listed(KEYS[1], job) and type(redis.pcall('RPUSH', KEYS[queue], job)) ~= 'table' then
    redis.call('LREM', KEYS[1], 1, job)
    redis.pcall('SADD', KEYS[8], name)
    keep_all(queue + 1, queue + 2, jid, ARGV[3], retake)
    requeued = requeued + 1
  end
end
redis.pcall('DEL', KEYS[3])
redis.pcall('DEL', KEYS[7])
redis.pcall('SREM', KEYS[4], ARGV[1])
local left = redis.call('LLEN', KEYS[1])
-- With jobs left, the presence runs out by itself: it tells a successor on the same machine that it need not wait.
if left == 0 then redis.pcall('DEL', KEYS[2]) end
if left == 0 and ARGV[2] == '1' then
  redis.call('SREM', KEYS[5], ARGV[1])
  redis.call('HDEL', KEYS[6], ARGV[1])
end
return {requeued, left}
