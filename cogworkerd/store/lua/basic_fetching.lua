-- Included by basic_fetch.lua and basic_settle_and_fetch.lua: pops one job; from then on only the child that asked has it.
-- Answers as looking.lua says.

local function fetch(first_key, first_name)
  return look(first_key, first_name, function(queue) return redis.pcall('RPOP', queue) end)
end
