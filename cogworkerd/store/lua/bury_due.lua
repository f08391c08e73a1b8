-- Move one due entry that cannot be a job to dead.
-- KEYS 1 zset    schedule or retry           ARGV 1 the entry as stored
--      2 zset    dead                             2 score in dead
--      3 string  stats:failed                     3 the payload for dead
--      4 hash    throughput:<hour>
-- Answers 1, or 0 if somebody else moved the entry.
--@include statistics

if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3])
redis.call('ZREM', KEYS[1], ARGV[1])
count_run('failed', KEYS[3], KEYS[4])
return 1
