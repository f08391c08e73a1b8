-- Included by fire_slot.lua and reserve_slot.lua, which begin alike:
-- KEYS 1 set     periodic:disabled           ARGV 1 pjid
--      2 string  periodic:last_slot:<pjid>        2 the slot, epoch seconds
--      3 string  periodic:lock:<pjid>:<slot>      3 "1": one run at a time (until_executed)
--      4 string  periodic:running:<pjid>

-- Why the slot cannot be claimed: "disabled", "lost" (somebody has claimed it, or a later one), "blocked" (a run of the
-- entry waits or is at work); nil if it can.
local function refusal()
  if redis.pcall('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 'disabled' end
  local last = redis.pcall('GET', KEYS[2])
  local number = type(last) == 'string' and string.match(last, '^%d+$')
  if number and tonumber(number) >= tonumber(ARGV[2]) then return 'lost' end
  if redis.call('EXISTS', KEYS[3]) == 1 then return 'lost' end
  if ARGV[3] == '1' and redis.call('EXISTS', KEYS[4]) == 1 then return 'blocked' end
end
