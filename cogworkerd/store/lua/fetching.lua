-- Included by fetch.lua and settle_and_fetch.lua.
-- Takes one job from the first queue that has one, in the order given, paused queues skipped.
-- first_key: index in KEYS of the paused set; the queues follow it. first_name: index in ARGV of the first queue's name.
-- Answers {index of the queue, job}; {0, "", name ...} when all are empty, with the names of the paused ones; {-1, ""} when this identity is not registered;
-- {-2, error} when no queue gave a job and one could not be read.

local function fetch(first_key, first_name)
  if redis.pcall('SISMEMBER', KEYS[2], ARGV[1]) ~= 1 then return {-1, ''} end
  local problem, paused = nil, {}
  for i = first_key + 1, #KEYS do
    if redis.pcall('SISMEMBER', KEYS[first_key], ARGV[first_name + i - first_key - 1]) == 1 then
      paused[#paused + 1] = ARGV[first_name + i - first_key - 1]
    else
      local job = redis.pcall('LMOVE', KEYS[i], KEYS[1], 'RIGHT', 'LEFT')
      if type(job) == 'string' then return {i - first_key, job} end
      if type(job) == 'table' then problem = problem or job.err end
    end
  end
  if problem then return {-2, problem} end
  return {0, '', unpack(paused)}
end
