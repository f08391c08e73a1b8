-- Delete one entry of schedule, retry or dead, with what is kept about it.
-- KEYS 1 zset    the set                     ARGV 1 the entry
--      2 list    job_attempts:<jid>               2 jid
--      3...      lock keys of the job
-- Answers 1, or 0 if the entry is not there any more; see release.lua, too.
--@include release

if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.pcall('DEL', KEYS[2])
release(3, #KEYS - 2, ARGV[2])
return with_unreleased(1)
