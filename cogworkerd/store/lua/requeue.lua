-- Put one job of the own list back at the end of its queue that is popped next; a job blamed too often goes to dead.
-- Acts only under the newest look (look.lua): a requeue that takes effect late must not hit a job that runs again.
-- KEYS 1 list    own in-progress list        ARGV 1 the job, byte for byte as fetched
--      2 string  x:look:<identity>                2 number of the look that justifies this
--      3 list    the job's queue                  3 the queue's name
--      4 set     queues                           4 "1": count an orphaning
--      5 string  orphanings:<jid>                 5 how many orphanings are allowed
--      6 zset    dead                             6 lifetime of the counter, seconds
--      7 string  stats:failed                     7 jid
--      8 hash    throughput:<hour>                8 score in dead
--      9 list    job_attempts:<jid>               9 the payload for dead
--      10...     lock keys of the job            10 the attempt's record for a burial
--                                                11 seconds for which the locks are kept
--                                                12 "1": the last lock is taken again if it lapsed
-- Answers "requeued", "buried", "gone" (not on the list) or "void" (a newer look was taken); see release.lua, too.
--@include listed
--@include orphanings
--@include keep
--@include release
--@include statistics

if redis.call('GET', KEYS[2]) ~= ARGV[2] then return 'void' end
if not listed(KEYS[1], ARGV[1]) then return 'gone' end
local count = ARGV[4] == '1' and orphanings(KEYS[5]) or 0
if count > tonumber(ARGV[5]) then
  redis.call('ZADD', KEYS[6], ARGV[8], ARGV[9])
  redis.call('LREM', KEYS[1], 1, ARGV[1])
  redis.pcall('DEL', KEYS[5])
  release(10, #KEYS - 9, ARGV[7])
  count_run('failed', KEYS[7], KEYS[8])
  note_attempt(KEYS[9], ARGV[10])
  return with_unreleased('buried')
end
redis.call('RPUSH', KEYS[3], ARGV[1])
redis.call('LREM', KEYS[1], 1, ARGV[1])
redis.pcall('SADD', KEYS[4], ARGV[3])
keep_all(10, #KEYS, ARGV[7], ARGV[11], ARGV[12])
if count > 0 then redis.pcall('SET', KEYS[5], count, 'EX', ARGV[6]) end
return 'requeued'
