-- Write the status of a job.
-- KEYS 1 hash    status:<jid>                ARGV 1 lifetime, seconds
--                                                 2 "1": what it says of an error is over
--                                                 3... names and values in turn

if ARGV[2] == '1' then redis.call('HDEL', KEYS[1], 'error_class', 'error_message') end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
