-- Settle the job that ended and fetch the next one, in one step, without a list of those in progress.
-- KEYS and ARGV begin as basic_settling.lua says. Behind the lock keys: the paused set, then the queues to look at,
-- first one first; behind ARGV 8: the names of these queues.
-- Answers {what basic_settle.lua answers, index of the queue, job ...}; from the index on as basic_fetching.lua
-- says.
--@include filing
--@include keep
--@include release
--@include statistics
--@include basic_settling
--@include looking
--@include basic_fetching

local result = with_unreleased(settle())
local found = fetch(6 + tonumber(ARGV[6]), 9)
return {result, unpack(found)}
