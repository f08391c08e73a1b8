-- File one record of the list unsettled in the set that it names.
-- KEYS 1 list    unsettled                   ARGV 1 the record as listed
--      2 zset    schedule, retry or dead          2 score
--      3 string  stats:failed                     3 payload
--      4 hash    throughput:<hour>                4 jid
--      5 string  orphanings:<jid>                 5 "1": it is over (filed in dead)
--      6...      lock keys of the job             6 seconds for which the locks are kept, if it is not over
-- Answers 1, or 0 if somebody else filed it; see release.lua, too.
--@include keep
--@include listed
--@include release
--@include statistics

if not listed(KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3])
redis.call('LREM', KEYS[1], 1, ARGV[1])
redis.pcall('DEL', KEYS[5])
if ARGV[5] == '1' then
  release(6, #KEYS - 5, ARGV[4])
  count_run('failed', KEYS[3], KEYS[4])
else
  keep_all(6, #KEYS, ARGV[4], ARGV[6])
end
return with_unreleased(1)
