-- Move a key of ours that holds another type out of the way. It checks again, since another daemon may have been first.
-- KEYS 1 any     the key                     ARGV 1 the type that it should have
--      2 any     its new name                     2 lifetime, seconds
-- Answers the type that it had, or "" if there is nothing to do.

local found = redis.call('TYPE', KEYS[1])['ok']
if found == 'none' or found == ARGV[1] then return '' end
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('EXPIRE', KEYS[2], ARGV[2])
return found
