-- Included where a run ends: write what must not be lost, before the run's entry is removed.
-- score "queue": the job goes back to its queue, at the end that is popped next.

local function file(key, score, payload)
  if score == 'queue' then redis.call('RPUSH', key, payload) else redis.call('ZADD', key, score, payload) end
end
