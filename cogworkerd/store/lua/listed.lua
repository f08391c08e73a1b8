-- Included by every script that acts on a job only if a list still has it.
-- Falls back on reading the list where the server does not let us use LPOS.

local function listed(list, job)
  local position = redis.pcall('LPOS', list, job)
  if type(position) ~= 'table' then return position end
  for _, entry in ipairs(redis.call('LRANGE', list, 0, -1)) do
    if entry == job then return true end
  end
  return false
end
