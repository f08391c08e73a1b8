-- Included by fetch.lua and settle_and_fetch.lua: moves one job onto the own in-progress list, KEYS 1.
-- Answers as looking.lua says, or {-1, ""} when this identity, ARGV 1, is not registered in KEYS 2.

local function fetch(first_key, first_name)
  if redis.pcall('SISMEMBER', KEYS[2], ARGV[1]) ~= 1 then return {-1, ''} end
  return look(first_key, first_name, function(queue) return redis.pcall('LMOVE', queue, KEYS[1], 'RIGHT', 'LEFT') end)
end
