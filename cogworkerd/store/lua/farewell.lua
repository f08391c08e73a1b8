-- The last step of a stop: requeue what is left of the own list, in order, at the end that is popped next; leave.
-- KEYS 1 list    own in-progress list        ARGV 1 identity
--      2 hash    presence key                     2 "1": forget the identity (every child left in order)
--      3 hash    workers key                      3 how many jobs only lack their ack
--      4 set     processes                        then these jobs
--      5 set     inprogress_identities            then, newest first, the jobs to requeue, each with its queue's name
--      6 hash    last_beat
--      7 string  x:look:<identity>
--      8 set     queues
--      9... list the queue of each job to requeue
-- Answers {requeued, left on the list}.
--@include listed

local acks = tonumber(ARGV[3])
for i = 4, 3 + acks do redis.call('LREM', KEYS[1], 1, ARGV[i]) end
local requeued = 0
for i = 1, #KEYS - 8 do
  local job, name = ARGV[2 + acks + 2 * i], ARGV[3 + acks + 2 * i]
  if listed(KEYS[1], job) and type(redis.pcall('RPUSH', KEYS[8 + i], job)) ~= 'table' then
    redis.call('LREM', KEYS[1], 1, job)
    redis.pcall('SADD', KEYS[8], name)
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
