-- Settle the job that ended and fetch the next one, in one step.
-- KEYS and ARGV begin as settling.lua says. Behind the lock keys: the paused set, then the queues to look at, first
-- one first; behind ARGV 10: the names of these queues.
-- Answers {what settle.lua answers, index of the queue, job ...}; from the index on as fetching.lua says.
--@include listed
--@include filing
--@include keep
--@include release
--@include statistics
--@include settling
--@include looking
--@include fetching

local result = with_unreleased(settle())
local found = fetch(8 + tonumber(ARGV[8]), 11)
return {result, unpack(found)}
