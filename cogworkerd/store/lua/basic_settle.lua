-- Settle one job that no list holds: file its failure if there is one, release what it held. Answers "settled";
-- see release.lua, too.
-- Arguments: basic_settling.lua.
--@include filing
--@include keep
--@include release
--@include statistics
--@include basic_settling

return with_unreleased(settle())
