-- Settle one job that no list holds: file its failure if there is one, release what it held. Answers "settled".
-- Arguments: basic_settling.lua.
--@include release
--@include statistics
--@include basic_settling

return settle()
