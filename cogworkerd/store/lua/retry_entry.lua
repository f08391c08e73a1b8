-- Move one entry of schedule, retry or dead to its queue now: what "retry" by hand does.
-- KEYS 1 zset    the set                     ARGV 1 the entry as stored
--      2 list    the job's queue                  2 the job to push
--      3 set     queues                           3 name of its queue
--      4...      lock keys of the job             4 jid
--                                                 5 seconds for which its locks are held; a free one is taken
-- Answers 1, or 0 if the entry is not there any more.
--@include keep

if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('LPUSH', KEYS[2], ARGV[2])
redis.call('ZREM', KEYS[1], ARGV[1])
redis.pcall('SADD', KEYS[3], ARGV[3])
for i = 4, #KEYS do hold(KEYS[i], ARGV[4], ARGV[5]) end
return 1
