-- Included where a job is over: its locks are released, each only if the job owns it.
-- first: index in KEYS of the first lock; count: how many; owner: the job's id.

local function release(first, count, owner)
  for i = first, first + count - 1 do
    if redis.pcall('GET', KEYS[i]) == owner then redis.pcall('DEL', KEYS[i]) end
  end
end
