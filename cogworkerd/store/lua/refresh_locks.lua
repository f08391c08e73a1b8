-- Refresh the locks of jobs that are being performed, each on its own: one that cannot be read holds up no other.
-- KEYS the locks        ARGV for each lock: jid of the owner, seconds, "1" if a lapsed one is taken again
-- Answers for each lock 1 (its job holds it), 0 (nobody or somebody else does) or the error.

local answers = {}
for i, key in ipairs(KEYS) do
  local owner, ttl, retake = unpack(ARGV, 3 * i - 2, 3 * i)
  local holder = redis.pcall('GET', key)
  if not holder and retake == '1' then
    redis.pcall('SET', key, owner, 'NX', 'EX', ttl)
    holder = redis.pcall('GET', key)
  end
  if type(holder) == 'table' then
    answers[i] = holder.err
  elseif holder == owner then
    redis.pcall('EXPIRE', key, ttl)
    answers[i] = 1
  else
    answers[i] = 0
  end
end
return answers
