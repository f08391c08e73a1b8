-- Included by basic_settle.lua and basic_settle_and_fetch.lua: settling where no list holds the job.
-- The shared head of their arguments:
--
-- KEYS 1 string  orphanings:<jid>            ARGV 1 jid
--      2 string  stats:processed or :failed       2 "processed", "failed" or "" (count nothing)
--      3 hash    throughput:<hour>                3 score in the set to file in, "queue": it goes
--                                                   back there, or "": file nothing
--      4 any     retry, dead, or its queue        4 the payload to file
--      5 list    job_attempts:<jid>               5 the attempt's record, or ""
--      6...      lock keys of the job             6 how many lock keys there are
--                                                 7 seconds for which the locks are kept, "0": release them
--                                                 8 "1": a lapsed running lock, the last one, is taken again

local function settle()
  if ARGV[3] ~= '' then file(KEYS[4], ARGV[3], ARGV[4]) end
  if ARGV[3] ~= 'queue' then redis.pcall('DEL', KEYS[1]) end
  if ARGV[7] == '0' then
    release(6, tonumber(ARGV[6]), ARGV[1])
  else
    keep_all(6, 5 + tonumber(ARGV[6]), ARGV[1], ARGV[7], ARGV[8])
  end
  count_run(ARGV[2], KEYS[2], KEYS[3])
  note_attempt(KEYS[5], ARGV[5])
  return 'settled'
end
