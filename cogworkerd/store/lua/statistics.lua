-- Included where a run ends. Best effort: a key of another type never stops a settlement.

local function count_run(field, counter, throughput)
  if field == '' then return end
  redis.pcall('INCR', counter)
  if redis.pcall('HINCRBY', throughput, field, 1) == 1 then redis.pcall('EXPIRE', throughput, 90000) end
end

local function note_attempt(log, record)
  if record == '' then return end
  redis.pcall('RPUSH', log, record)
  redis.pcall('LTRIM', log, -25, -1)
  redis.pcall('EXPIRE', log, 2592000)
end
