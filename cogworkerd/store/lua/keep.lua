-- Included where a job goes on waiting: its locks live as long as it may wait. Best effort: none of it stops a move.

-- A lock that the job owns lives at least so many seconds from now.
local function keep(key, owner, ttl)
  if redis.pcall('GET', key) ~= owner then return end
  local left = redis.pcall('TTL', key)
  if type(left) == 'number' and left < tonumber(ttl) then redis.pcall('EXPIRE', key, ttl) end
end

-- The same; a lock that nobody owns is taken.
local function hold(key, owner, ttl)
  if type(redis.pcall('SET', key, owner, 'NX', 'EX', ttl)) == 'table' then return end
  keep(key, owner, ttl)
end

-- The locks of one job, KEYS first to last; with retake "1" the last one, the running lock, is held.
local function keep_all(first, last, owner, ttl, retake)
  for i = first, last do
    if retake == '1' and i == last then hold(KEYS[i], owner, ttl) else keep(KEYS[i], owner, ttl) end
  end
end
