-- Register an identity, and tell whether it was registered and what its list holds: one step, so that a supervisor
-- that was cut off knows whether others have taken its jobs over. It is a look, too.
-- KEYS 1 list    own in-progress list        ARGV 1 identity
--      2 string  x:look:<identity>                2 lifetime of the look's number, seconds
--      3 set     inprogress_identities            3 the caller's time, should the server not tell its own
--      4 hash    last_beat
-- Answers {1 if it was registered, number of this look, jobs of the list, newest first}.

local was_registered = redis.call('SISMEMBER', KEYS[3], ARGV[1])
local number = redis.call('INCR', KEYS[2])
redis.call('EXPIRE', KEYS[2], ARGV[2])
local time = redis.pcall('TIME')
redis.call('HSET', KEYS[4], ARGV[1], time.err and ARGV[3] or time[1])
redis.call('SADD', KEYS[3], ARGV[1])
return {was_registered, number, redis.call('LRANGE', KEYS[1], 0, -1)}
