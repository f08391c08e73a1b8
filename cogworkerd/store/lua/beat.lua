-- The secondary writes of a beat, each on its own: one key of the wrong type fails no other write.
-- KEYS 1 set     inprogress_identities       ARGV 1 identity
--      2 hash    last_beat                        2 the caller's time, should the server not tell its own
--      3 zset    live_queues                      3 age in seconds at which a queue's stamp is dropped
--      4 set     queues                           4 "1": it fetches reliably, so register it as an owner of a list
--      5 set     processes                        5... names of the queues that this process reads
-- Answers the errors, as texts that begin with the key; an empty list when all was written.

local problems = {}
local function try(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then problems[#problems + 1] = key .. ': ' .. reply.err end
end

local time = redis.pcall('TIME')
local now = time.err and ARGV[2] or time[1]
if ARGV[4] == '1' then
  try('SADD', KEYS[1], ARGV[1])
  try('HSET', KEYS[2], ARGV[1], now)
end
try('SADD', KEYS[5], ARGV[1])
for i = 5, #ARGV do
  try('ZADD', KEYS[3], now, ARGV[i])
  try('SADD', KEYS[4], ARGV[i])
end
try('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. (now - ARGV[3]))
return problems
