-- Give an entry of dead that was buried as its bare bytes (recover.lua) the fields of its failure.
-- KEYS 1 set     x:raw_burials               ARGV 1 the job as buried
--      2 zset    dead                             2 score in dead
--      3 string  stats:failed                     3 the payload for dead
--      4 hash    throughput:<hour>                4 jid
--      5 string  orphanings:<jid>                 5 the attempt's record
--      6 list    job_attempts:<jid>
--      7...      lock keys of the job
-- Answers 1, or 0 if the entry is not there any more (somebody took it, or another daemon completed it); see
-- release.lua, too.
--@include release
--@include statistics

local there = redis.call('ZSCORE', KEYS[2], ARGV[1])
if there then
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3])
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.pcall('DEL', KEYS[5])
  release(7, #KEYS - 6, ARGV[4])
  count_run('failed', KEYS[3], KEYS[4])
  note_attempt(KEYS[6], ARGV[5])
end
redis.call('SREM', KEYS[1], ARGV[1])
return with_unreleased(there and 1 or 0)
