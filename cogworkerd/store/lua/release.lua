-- Included where a job is over: its locks are released, each only if the job owns it.
-- first: index in KEYS of the first lock; count: how many; owner: the job's id.
-- What the server refuses is noted: with_unreleased(answer) is {answer, key, error, key, error ...} then.

local unreleased = {}

local function release(first, count, owner)
  for i = first, first + count - 1 do
    local reply = redis.pcall('GET', KEYS[i])
    if reply == owner then reply = redis.pcall('DEL', KEYS[i]) end
    if type(reply) == 'table' then
      unreleased[#unreleased + 1] = KEYS[i]
      unreleased[#unreleased + 1] = reply.err
    end
  end
end

local function with_unreleased(answer)
  if #unreleased == 0 then return answer end
  return {answer, unpack(unreleased)}
end
