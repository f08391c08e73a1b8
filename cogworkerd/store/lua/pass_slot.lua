-- Note that a slot is done with although it was not fired: nobody is to catch it up.
-- KEYS 1 string  x:periodic_seen:<pjid>      ARGV 1 the slot, epoch seconds
--                                                 2 lifetime of the memory of it, seconds
-- Answers 1, or 0 if a later one was noted.

local noted = redis.call('GET', KEYS[1])
local number = noted and string.match(noted, '^%d+$')
if number and tonumber(number) > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
