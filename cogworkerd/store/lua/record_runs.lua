-- Write down runs that have ended. Best effort: a key of another type, or one that this user may not write, never keeps
-- the rest from being written. A server that takes no writes at all is an error, and nothing was written then.
-- KEYS 1 zset    history:all                 ARGV 1 the oldest time that is kept
--      2 zset    history:success                  2 how many entries each set keeps
--      3 zset    history:failed                   3 how many of the runs were successes
--      4 hash    history:daily:<day>              4 how many were failures
--      5 hash    x:cost:<day>                     5 lifetime of the day's counts, seconds
--                                                 6 lifetime of the day's costs, seconds
--                                                 7 how many names a day has at most
--                                                 8 how many successes follow: for each its time and entry
--                                                 9 how many failures follow: the same, and then for each again
--                                                   its time and its entry with the traceback
--                                                10 how many jobs with costs; each: name, ten sums, a maximum

local at = 11

local refusal

local function add(key, count)
  if count == 0 then return end
  local reply = redis.pcall('ZADD', key, unpack(ARGV, at, at + 2 * count - 1))
  if type(reply) ~= 'table' then return end
  if not (string.find(reply.err, 'WRONGTYPE') or string.find(reply.err, 'ermission')) then refusal = reply end
end

local good, bad = tonumber(ARGV[8]), tonumber(ARGV[9])
add(KEYS[1], good)
add(KEYS[2], good)
at = at + 2 * good
add(KEYS[1], bad)
at = at + 2 * bad
add(KEYS[3], bad)
at = at + 2 * bad
if refusal then return refusal end

if good + bad > 0 then
  for i = 1, 3 do
    redis.pcall('ZREMRANGEBYSCORE', KEYS[i], '-inf', '(' .. ARGV[1])
    redis.pcall('ZREMRANGEBYRANK', KEYS[i], 0, -tonumber(ARGV[2]) - 1)
  end
end

local function count(key, field, by, ttl)
  if by ~= '0' and type(redis.pcall('HINCRBY', key, field, by)) == 'number' then redis.pcall('EXPIRE', key, ttl) end
end

count(KEYS[4], 'success', ARGV[3], ARGV[5])
count(KEYS[4], 'failed', ARGV[4], ARGV[5])

local summed
local sums = {'runs', 'failed', 'wall_us', 'cpu_user_us', 'cpu_system_us', 'waits', 'wait_us', 'rss_growth_kb',
  'switches', 'preempted'}
for _ = 1, tonumber(ARGV[10]) do
  local name = ARGV[at]
  if redis.pcall('HEXISTS', KEYS[5], 'runs:' .. name) == 0 then
    local size = redis.pcall('HLEN', KEYS[5])
    if type(size) == 'number' and size >= (#sums + 1) * tonumber(ARGV[7]) then name = '(others)' end
  end
  -- Also where it is nothing: each name has all fields, by which names are counted.
  for i, field in ipairs(sums) do summed = redis.pcall('HINCRBY', KEYS[5], field .. ':' .. name, ARGV[at + i]) end
  local peak = 'rss_peak_kb:' .. name
  local known = redis.pcall('HGET', KEYS[5], peak)
  if type(known) ~= 'string' or (tonumber(known) or -1) < tonumber(ARGV[at + #sums + 1]) then
    redis.pcall('HSET', KEYS[5], peak, ARGV[at + #sums + 1])
  end
  at = at + #sums + 2
end
if type(summed) == 'number' then redis.pcall('EXPIRE', KEYS[5], ARGV[6]) end
return 1
