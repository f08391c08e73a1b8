-- Fetch one job without a list of those in progress.
-- KEYS 1 set     paused_queues               ARGV 1... names of the queues, in the order of their keys
--      2... list the queues to look at, first one first
-- Answers as basic_fetching.lua says.
--@include looking
--@include basic_fetching

return fetch(1, 1)
