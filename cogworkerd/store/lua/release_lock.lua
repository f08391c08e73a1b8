-- Release one lock, if the job owns it: for a release that was refused before.
-- KEYS 1 string  the lock                    ARGV 1 jid of the owner
-- Answers 1, or 0 if somebody else holds it or nobody.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
