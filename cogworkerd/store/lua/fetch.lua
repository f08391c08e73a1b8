-- Fetch one job onto the own in-progress list.
-- KEYS 1 list    own in-progress list        ARGV 1 identity
--      2 set     inprogress_identities            2... names of the queues, in the order of their keys
--      3 set     paused_queues
--      4... list the queues to look at, first one first
-- Answers as fetching.lua says.
--@include looking
--@include fetching

return fetch(3, 2)
