-- Put one job of a list back onto its queue, at the end that is popped next: what a child does whose parent is dead.
-- KEYS 1 list    in-progress list            ARGV 1 the job, byte for byte as fetched
--      2 list    the job's queue                  2 jid
--      3...      lock keys of the job             3 seconds for which the locks are kept
--                                                 4 "1": the last lock is taken again if it lapsed
-- Answers 1, or 0 if the job is not on the list.
--@include keep
--@include listed

if not listed(KEYS[1], ARGV[1]) then return 0 end
redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('LREM', KEYS[1], 1, ARGV[1])
keep_all(3, #KEYS, ARGV[2], ARGV[3], ARGV[4])
return 1
