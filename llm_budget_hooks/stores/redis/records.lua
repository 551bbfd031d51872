-- What a namespace keeps beside balances: settings, histories, marks, and the stream to the ledger.
--
-- KEYS[1]  the namespace's root
-- ARGV[1]  what is asked: 1 settings, 2 samples, 3 once, 4 post, 5 take, 6 epoch; now (-1: the server's time); then
--          samples: how many histories to read
--          once: no at first, every, keep, reset (0 or 1)            post: most rows in the stream
--          take: lease, how many rows                                all packed doubles, times in ms
-- ARGV[2]  zero-ended strings:
--          settings: per change its name, + before the text that it is for or - for none, and the same of the new one
--          samples: histories to read, then those to add to          once: the mark
--          post: per row kind, id, text                              take: who asks, the last row that is done
--          epoch: the epoch that is to be replaced, and by which; the latter empty: by none
-- ARGV[3]  samples: a value for each that is added, packed doubles
--
-- Returns the time, then
--   settings: whether it was changed, their number, then names and texts
--   samples: per history how many numbers, then at and value of each run
--   once: 1 for yes                                          epoch: a byte, whether the server evicts keys; the epoch and its time as text
--   post, take: whether the lease is the caller's, how many rows there was no room for, then per row its number,
--   kind, id, was, at, facts, actual
-- Numbers are packed doubles; a text comes after its length.

local op, given, a, b, c, d = unpack_('<dddddd', ARGV[1])
local now = time_of(given)
local stamped = call('GET', root .. 'z')
if lost(stamped) then return 'LOST' .. (stamped or '') end
local texts, at = {}, 1
while at <= #ARGV[2] do
  local text
  text, at = unpack_('s', ARGV[2], at)
  texts[#texts + 1] = text
end

local function text_of(text) return pack('<I', #text) .. text end

if op == 1 then
  local revision = tonumber(call('GET', root .. 'r') or 0)
  local changed = #texts > 0
  for i = 1, #texts, 3 do
    local kept = call('HGET', root .. 's', texts[i])
    if (kept and '+' .. kept or '-') ~= texts[i + 1] then changed = false end
  end
  if changed then
    revision = revision + 1
    call('SET', root .. 'r', string.format('%d', revision))
    for i = 1, #texts, 3 do
      if string.sub(texts[i + 2], 1, 1) == '+' then
        call('HSET', root .. 's', texts[i], string.sub(texts[i + 2], 2))
      else
        call('HDEL', root .. 's', texts[i])
      end
    end
  end
  local found = {pack('<ddd', now, changed and 1 or 0, revision)}
  for _, text in ipairs(call('HGETALL', root .. 's')) do found[#found + 1] = text_of(text) end
  return table.concat(found)
end

if op == 6 then
  local found = call('GET', root .. 'z') or ''
  if texts[2] ~= '' and (string.match(found, '^%S+') or '') == texts[1] then
    found = texts[2] .. string.format(' %d', now)
    call('SET', root .. 'z', found, 'PX', STAMP)
  end
  local memory = redis.pcall('INFO', 'memory')
  local evicts = type(memory) == 'string' and not string.find(memory, 'maxmemory:0\r', 1, true)
    and not string.find(memory, 'maxmemory_policy:noeviction', 1, true)
  return pack('<dB', now, evicts and 1 or 0) .. found
end

if op == 2 then
  local found = {pack('<d', now)}
  for i = a + 1, #texts do add_sample(root .. 'y:' .. texts[i], call('GET', root .. 'y:' .. texts[i]), unpack_('<d', ARGV[3], 8 * (i - a - 1) + 1), now) end
  for i = 1, a do
    local raw, runs = call('GET', root .. 'y:' .. texts[i]) or '', {}
    for e = 1, #raw, 16 do
      if unpack_('<d', raw, e) > now - HISTORY then runs[#runs + 1] = string.sub(raw, e, e + 15) end
    end
    found[#found + 1] = pack('<d', 2 * #runs) .. table.concat(runs)
  end
  return table.concat(found)
end

if op == 3 then
  local name, count, last = root .. 'm:' .. texts[1], 0, 0
  local raw = call('GET', name)
  if raw then count, last = unpack_('<dd', raw) end
  if d == 1 then
    if raw then call('SET', name, pack('<dd', 0, last), 'PX', c) end
    return pack('<dd', now, 0)
  end
  local yes = count >= a and (last == 0 or now - last >= b)
  call('SET', name, pack('<dd', count + 1, yes and now or last), 'PX', c)
  return pack('<dd', now, yes and 1 or 0)
end

local found = {}
local leased = 1
if op == 4 then
  for i = 1, #texts, 3 do post(texts[i], texts[i + 1], '', now, texts[i + 2], '', a) end
else
  local owner, done = texts[1], texts[2]
  if done ~= '' then
    local ms, seq = string.match(done, '^(%d+)-(%d+)$')
    call('XTRIM', root .. 'q', 'MINID', ms .. '-' .. string.format('%d', seq + 1))
  end
  local holder = call('GET', root .. 'ql')
  if holder and holder ~= owner then
    leased = 0
  else
    for _, row in ipairs(call('XRANGE', root .. 'q', '-', '+', 'COUNT', b)) do
      found[#found + 1] = text_of(row[1])
      for f = 2, 12, 2 do found[#found + 1] = text_of(row[2][f]) end
    end
    if #found > 0 then call('SET', root .. 'ql', owner, 'PX', a) else call('DEL', root .. 'ql') end
  end
end
return pack('<ddd', now, leased, tonumber(call('GET', root .. 'qd') or 0)) .. table.concat(found)
