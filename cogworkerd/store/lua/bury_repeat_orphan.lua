-- File one job that was orphaned too often in dead.
-- KEYS 1 list    repeat_orphans              ARGV 1 the job as listed
--      2 zset    dead                             2 score in dead
--      3 string  stats:failed                     3 the payload for dead
--      4 hash    throughput:<hour>                4 jid
--      5 string  orphanings:<jid>                 5 the attempt's record
--      6 list    job_attempts:<jid>
--      7...      lock keys of the job
-- Answers 1, or 0 if somebody else filed it; see release.lua, too.
--@include listed
--@include release
--@include statistics

if not listed(KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3])
redis.call('LREM', KEYS[1], 1, ARGV[1])
redis.pcall('DEL', KEYS[5])
release(7, #KEYS - 6, ARGV[4])
count_run('failed', KEYS[3], KEYS[4])
note_attempt(KEYS[6], ARGV[5])
return with_unreleased(1)
