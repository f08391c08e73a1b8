-- Write the status of a job.
-- KEYS 1 hash    status:<jid>                ARGV 1 lifetime, seconds
--                                                 2 "over": what it says of an error is over; "requeued": the same,
--                                                   and nothing is written where a later run has ended already; else ""
--                                                 3... names and values in turn

if ARGV[2] == 'requeued' then
  local status = redis.call('HGET', KEYS[1], 'status')
  if status == 'complete' or status == 'failed' then return 0 end
end
if ARGV[2] ~= '' then redis.call('HDEL', KEYS[1], 'error_class', 'error_message') end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
