-- Fire one slot of a periodic entry: claim it and push its job, in one step. A push that is refused undoes the claim.
-- KEYS and ARGV begin as claimable.lua says; then:
-- KEYS 5 any     the job's queue, or schedule  ARGV 4 jid
--      6 set     queues                             5 lifetime of the running lock, seconds
--      7 string  its unique lock, or x:nothing      6 lifetime of the unique lock, seconds, or "": the job is not unique
--      8 hash    x:periodic_fired:<pjid>
--                                                   7 lifetime of the slot's lock, seconds
--                                                   8 lifetime of the memory of the slot, seconds
--                                                   9 the job
--                                                  10 name of its queue
--                                                  11 when it is due, or "": now
--                                                  12 identity of the daemon
--                                                  13 lifetime of the receipts, seconds
--                                                  14 how many daemons' receipts are kept
-- Answers {"fired", the previous slot or ""}, or {why not}: as claimable.lua says, or "duplicate" (its unique lock is
-- held). A push that the server refuses is answered with its error. What is answered as fired is kept as a receipt, too,
-- one a daemon, for when the answer does not reach it: "<slot> <previous> <jid>".
--@include claimable

local why = refusal()
if why then return {why} end
local previous = redis.pcall('GET', KEYS[2])
if type(previous) ~= 'string' then previous = '' end
if ARGV[6] ~= '' and not redis.call('SET', KEYS[7], ARGV[4], 'NX', 'EX', ARGV[6]) then return {'duplicate'} end
redis.call('SET', KEYS[3], '1', 'EX', ARGV[7])
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[8])
if ARGV[3] == '1' then redis.call('SET', KEYS[4], ARGV[4], 'EX', ARGV[5]) end
local pushed
if ARGV[11] == '' then
  pushed = redis.pcall('LPUSH', KEYS[5], ARGV[9])
else
  pushed = redis.pcall('ZADD', KEYS[5], ARGV[11], ARGV[9])
end
if type(pushed) == 'table' then
  redis.call('DEL', KEYS[3])
  if previous == '' then redis.call('DEL', KEYS[2]) else redis.call('SET', KEYS[2], previous, 'EX', ARGV[8]) end
  if ARGV[3] == '1' then redis.call('DEL', KEYS[4]) end
  if ARGV[6] ~= '' then redis.call('DEL', KEYS[7]) end
  return pushed
end
if ARGV[11] == '' then redis.pcall('SADD', KEYS[6], ARGV[10]) end
local known = string.match(previous, '^%d+$') or ''
if redis.call('TYPE', KEYS[8]).ok ~= 'hash' or redis.call('HLEN', KEYS[8]) >= tonumber(ARGV[14]) then
  redis.call('DEL', KEYS[8])
end
redis.call('HSET', KEYS[8], ARGV[12], ARGV[2] .. ' ' .. known .. ' ' .. ARGV[4])
redis.call('EXPIRE', KEYS[8], ARGV[13])
return {'fired', previous}
