-- A numbered look at the own in-progress list. A requeue acts only under the newest look (requeue.lua).
-- KEYS 1 list    own in-progress list        ARGV 1 lifetime of the number, seconds
--      2 string  x:look:<identity>
-- Answers {number of this look, jobs of the list, newest first}.

local number = redis.call('INCR', KEYS[2])
redis.call('EXPIRE', KEYS[2], ARGV[1])
return {number, redis.call('LRANGE', KEYS[1], 0, -1)}
