-- Move a record of the list unsettled that cannot be used out of the way.
-- KEYS 1 list    unsettled                   ARGV 1 the record as listed
--      2 list    quarantine:...:records           2 lifetime, seconds
-- Answers 1, or 0 if somebody else moved it.
--@include listed

if not listed(KEYS[1], ARGV[1]) then return 0 end
redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[2])
redis.call('LREM', KEYS[1], 1, ARGV[1])
return 1
