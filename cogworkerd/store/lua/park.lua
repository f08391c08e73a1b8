-- Hand a filing that cannot be made here over to any live daemon: what a stop does with an outcome that its set refuses.
-- KEYS 1 list    own in-progress list        ARGV 1 the job, byte for byte as fetched
--      2 list    unsettled                        2 the record: what is to be filed where
--      3 string  stats:failed                     3 "failed", or "": who files it counts it
--      4 hash    throughput:<hour>                4 the attempt's record, or ""
--      5 list    job_attempts:<jid>               5 "1": the entry is known to be lost, hand over all the same
--      6...      lock keys of the job             6 jid
--                                                 7 seconds for which the locks are kept
-- Answers 1, or 0 if the job is not on the list.
--@include keep
--@include listed
--@include statistics

if ARGV[5] ~= '1' and not listed(KEYS[1], ARGV[1]) then return 0 end
redis.call('RPUSH', KEYS[2], ARGV[2])
redis.call('LREM', KEYS[1], 1, ARGV[1])
count_run(ARGV[3], KEYS[3], KEYS[4])
note_attempt(KEYS[5], ARGV[4])
keep_all(6, #KEYS, ARGV[6], ARGV[7])
return 1
