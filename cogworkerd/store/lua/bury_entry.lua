-- Move one entry of schedule or retry to dead by hand; it is over, so its locks are released.
-- KEYS 1 zset    the set                     ARGV 1 the entry
--      2 zset    dead                             2 score in dead
--      3...      lock keys of the job             3 jid
-- Answers 1, or 0 if the entry is not there any more; see release.lua, too.
--@include release

if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
release(3, #KEYS - 2, ARGV[3])
return with_unreleased(1)
