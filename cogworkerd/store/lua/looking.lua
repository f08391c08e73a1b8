-- Included by fetching.lua and basic_fetching.lua: takes one job from the first queue that has one, in the order given,
-- paused queues skipped.
-- first_key: index in KEYS of the paused set; the queues follow it. first_name: index in ARGV of the first queue's name.
-- take: takes a job from the queue of a key.
-- Answers {index of the queue, job}; {0, "", name ...} when all are empty, with the names of the paused ones;
-- {-2, error} when no queue gave a job and one could not be read.

local function look(first_key, first_name, take)
  local problem, paused = nil, {}
  for i = first_key + 1, #KEYS do
    local name = ARGV[first_name + i - first_key - 1]
    if redis.pcall('SISMEMBER', KEYS[first_key], name) == 1 then
      paused[#paused + 1] = name
    else
      local job = take(KEYS[i])
      if type(job) == 'string' then return {i - first_key, job} end
      if type(job) == 'table' then problem = problem or job.err end
    end
  end
  if problem then return {-2, problem} end
  return {0, '', unpack(paused)}
end
