-- Included by settle.lua and settle_and_fetch.lua. The shared head of their arguments:
--
-- KEYS 1 list    own in-progress list        ARGV 1 identity
--      2 set     inprogress_identities            2 the job, byte for byte as fetched
--      3 string  orphanings:<jid>                 3 jid
--      4 string  stats:processed or :failed       4 "processed", "failed" or "" (count nothing)
--      5 hash    throughput:<hour>                5 score in the set to file in, "queue": it goes
--                                                   back there, or "": file nothing
--      6 any     retry, dead, or its queue        6 the payload to file
--      7 list    job_attempts:<jid>               7 the attempt's record, or ""
--      8...      lock keys of the job             8 how many lock keys there are
--                                                 9 seconds for which the locks are kept, "0": release them
--                                                10 "1": a lapsed running lock, the last one, is taken again

local function settle()
  local function absent()
    return redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 and 'gone' or 'taken'
  end
  if ARGV[5] ~= '' then
    if not listed(KEYS[1], ARGV[2]) then return absent() end
    file(KEYS[6], ARGV[5], ARGV[6])
  end
  if redis.call('LREM', KEYS[1], 1, ARGV[2]) == 0 then return absent() end
  if ARGV[5] ~= 'queue' then redis.pcall('DEL', KEYS[3]) end
  if ARGV[9] == '0' then
    release(8, tonumber(ARGV[8]), ARGV[3])
  else
    keep_all(8, 7 + tonumber(ARGV[8]), ARGV[3], ARGV[9], ARGV[10])
  end
  count_run(ARGV[4], KEYS[4], KEYS[5])
  note_attempt(KEYS[7], ARGV[7])
  return 'settled'
end
