-- Settle one job: file its failure if there is one, take it off the in-progress list, release what it held.
-- Writes only if the job is on the list. Answers "settled", "gone" (not listed) or "taken" (not listed, and this
-- identity is not registered any more); see release.lua, too. Arguments: settling.lua.
--@include listed
--@include filing
--@include keep
--@include release
--@include statistics
--@include settling

return with_unreleased(settle())
