-- Put one job that no list holds back at the end of its queue that is popped next; one blamed too often goes to dead.
-- KEYS 1 list    the job's queue             ARGV 1 the job, byte for byte as fetched
--      2 set     queues                           2 the queue's name
--      3 string  orphanings:<jid>                 3 "1": count an orphaning
--      4 zset    dead                             4 how many orphanings are allowed
--      5 string  stats:failed                     5 lifetime of the counter, seconds
--      6 hash    throughput:<hour>                6 jid
--      7 list    job_attempts:<jid>               7 score in dead
--      8...      lock keys of the job             8 the payload for dead
--                                                 9 the attempt's record for a burial
--                                                10 seconds for which the locks are kept
--                                                11 "1": the last lock is taken again if it lapsed
-- Answers "requeued" or "buried"; see release.lua, too.
--@include orphanings
--@include keep
--@include release
--@include statistics

local count = ARGV[3] == '1' and orphanings(KEYS[3]) or 0
if count > tonumber(ARGV[4]) then
  redis.call('ZADD', KEYS[4], ARGV[7], ARGV[8])
  redis.pcall('DEL', KEYS[3])
  release(8, #KEYS - 7, ARGV[6])
  count_run('failed', KEYS[5], KEYS[6])
  note_attempt(KEYS[7], ARGV[9])
  return with_unreleased('buried')
end
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.pcall('SADD', KEYS[2], ARGV[2])
keep_all(8, #KEYS, ARGV[6], ARGV[10], ARGV[11])
if count > 0 then redis.pcall('SET', KEYS[3], count, 'EX', ARGV[5]) end
return 'requeued'
