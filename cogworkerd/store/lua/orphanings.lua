-- Included where a job is counted that lost its process.
-- A counter that is no count (another type, or a text that is no number of ours) starts over: it must never switch the
-- limit off, as "nan" or a large negative number would.

local function orphanings(counter)
  local stored = redis.pcall('GET', counter)
  local count = type(stored) == 'string' and #stored <= 6 and string.match(stored, '^%d+$')
  return tonumber(count or 0) + 1
end
