-- Delete jobs from a queue; each only if it is still there.
-- KEYS 1 list    the queue                   ARGV for each job: the job, its jid
--      then for each job: its unique lock, its running lock; x:nothing for one that it has not
-- Answers {how many were deleted, key, error, key, error ...}, the latter for locks that could not be released.
--@include release

local deleted = 0
for i = 0, #ARGV / 2 - 1 do
  if redis.call('LREM', KEYS[1], -1, ARGV[2 * i + 1]) == 1 then
    deleted = deleted + 1
    release(2 + 2 * i, 2, ARGV[2 * i + 2])
  end
end
return {deleted, unpack(unreleased)}
