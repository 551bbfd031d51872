-- The balances of accounts, after due holds have been ended; or holds that nobody has settled.
--
-- KEYS[1]  the namespace's root
-- ARGV[1]  now (-1: the server's time), from and until (the time the keys are right for), timeout, remember,
--          utterance timeout, entries kept singly, number of scopes, most holds to list (0: balances), most rows
--          in the stream; doubles
-- ARGV[2]  the rules
-- ARGV[3]  zero-ended strings: scopes, account keys, utterance, id of one hold or empty
--
-- Returns for balances a packed verdict byte (0, or 5: the time is outside from..until), the time, the calls of
-- the utterance, the number of the settings, then per account: spent, reserved, when its window ends (0: it has no end).
-- For holds: the time, then per hold its id and its record as stored, each after its length.

local T = {}
local given, from, until_, m, most
given, from, until_, T.timeout, T.remember, T.utterance_timeout, T.exact, m, most, T.outbox = unpack_('<dddddddddd', ARGV[1])
local now = time_of(given)
local n = #ARGV[2] / 27
local names = {unpack_(string.rep('s', 2 + m + n), ARGV[3])}
local scopes = {}
for s = 1, m do scopes[s] = names[s] end

local met = call('MGET', root .. 'z', root .. 'd')
if lost(met[1]) then return 'LOST' .. (met[1] or '') end
if not met[2] or tonumber(met[2]) <= now then
  local _, _, sweep = endings()
  sweep(scopes, T, now)
end

if most > 0 then
  local ids = {names[2 + m + n]}
  if ids[1] == '' then
    ids = call('ZRANGE', root .. 'o:', 0, most - 1)
    for _, id in ipairs(call('ZRANGEBYSCORE', root .. 'x', '(' .. string.format('%d', now), '+inf', 'LIMIT', 0, most)) do
      ids[#ids + 1] = id
    end
  end
  local listed = {pack('<d', now)}
  for i = 1, min(#ids, most) do
    local raw = call('GET', root .. 'h:' .. ids[i])
    local h = raw and read_hold(raw)
    if h and (h.state == OPEN or now < h.until_) then listed[#listed + 1] = pack('<I', #ids[i]) .. ids[i] .. pack('<I', #raw) .. raw end
  end
  return table.concat(listed)
end

if now < from or now >= until_ then return pack('<Bddd', 5, now, 0, 0) end
local utterance = names[1 + m + n]
local wanted = {root .. 'u:' .. utterance}
for i = 1, n do wanted[1 + i] = root .. 'a:' .. names[m + i] end
wanted[2 + n] = root .. 'r'
local found = call('MGET', unpack(wanted))
local began, calls = 0, 0
if utterance ~= '' and found[1] then
  local start, last, count = unpack_('<ddd', found[1])
  if now < last + T.utterance_timeout + T.timeout then began, calls = start, count end
end
local rules = {unpack_('<' .. string.rep(RULE, n), ARGV[2])}
local listed = {pack('<Bddd', 0, now, calls, tonumber(found[2 + n] or 0))}
for i = 1, n do
  local r, raw, spent, held, resets = 6 * (i - 1), found[1 + i], 0, 0, 0
  local kind, length = rules[r + 2], rules[r + 6]
  if kind == ROLLING then
    if raw then
      local log = read_log(raw)
      roll(wanted[1 + i], names[m + i], log, length, now)
      spent, held = log[2], log[1]
      if spent ~= 0 then resets = frees_at(names[m + i], log, 1, length) end
    end
  else
    local start = 0
    if raw then spent, held, start = unpack_('<ddd', raw) end
    if kind == CALENDAR then resets = rules[r + 5] end
    if kind == ANSWER and start ~= began then spent, held = 0, 0 end
    if kind == FIXED then
      if raw and now < start + length then resets = start + length else spent, held = 0, 0 end
    end
  end
  listed[#listed + 1] = pack('<ddd', spent, held, resets)
end
return table.concat(listed)
