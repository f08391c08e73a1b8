-- Move due entries of schedule or retry to their queues.
-- KEYS 1 zset    schedule or retry           ARGV in threes: the entry as stored, the job to push, name of its queue
--      2 set     queues
--      3... list the queue of each entry
-- Answers for each entry 1 (moved), 0 (somebody else moved it) or the error that kept it.

local answers = {}
for i = 1, #KEYS - 2 do
  local entry, job, queue = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  if redis.call('ZSCORE', KEYS[1], entry) then
    local pushed = redis.pcall('LPUSH', KEYS[i + 2], job)
    if type(pushed) == 'table' then
      answers[i] = pushed.err
    else
      redis.call('ZREM', KEYS[1], entry)
      redis.pcall('SADD', KEYS[2], queue)
      answers[i] = 1
    end
  else
    answers[i] = 0
  end
end
return answers
