-- Ask whether a slot can be claimed, and keep other daemons from asking their client middleware meanwhile.
-- KEYS and ARGV begin as claimable.lua says; then:
-- KEYS 5 string  x:periodic_reservation:<pjid>  ARGV 4 who reserves it
--                                                    5 lifetime of the reservation, seconds
-- Answers {"reserved"}, or {why not}: as claimable.lua says, or "reserved elsewhere".
--@include claimable

local why = refusal()
if why then return {why} end
if not redis.call('SET', KEYS[5], ARGV[4], 'NX', 'EX', ARGV[5]) then return {'reserved elsewhere'} end
return {'reserved'}
