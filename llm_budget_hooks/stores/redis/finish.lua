-- Settle, release or extend one hold.
--
-- KEYS[1]  the namespace's root
-- ARGV[1]  now (-1: the server's time), ending (0 settle, 1 release, 2 extend), timeout, remember, utterance
--          timeout, entries kept singly, cost and tokens (-1: not known), final (0 or 1), bury (0 or 1), most rows
--          in the stream (0: there is none); doubles
-- ARGV[2]  the hold's id
-- ARGV[3]  the hold as its owner carries it, as stored under h:<hold>, or empty
-- ARGV[4]  what goes into the stream beside the hold's note
-- ARGV[5]  of a replay, its journal and its number in it, else empty
-- ARGV[6]  the histories that a final settle adds to, as zero-ended strings
-- ARGV[7]  a value for each, packed doubles
--
-- Returns a packed byte (0 settled, 1 released, 2 late, 3 already settled, 4 already released, 5 unknown,
-- 6 extended), the time, the deadline, whether a second final settle differs, the hold's state; per account of a hold
-- that ended what is spent there now, 0 where nothing changed; then the id.

local T = {}
local given, ending, cost, tokens, final, bury
given, ending, T.timeout, T.remember, T.utterance_timeout, T.exact, cost, tokens, final, bury, T.outbox = unpack_('<ddddddddddd', ARGV[1])
local id = ARGV[2]
local now = time_of(given)
local carried = ARGV[3] ~= '' and read_hold(ARGV[3]) or nil
if carried then carried.lost = true end

local wanted, samples = {root .. 'z', root .. 'd', root .. 'h:' .. id}, #ARGV[7] / 8
if samples > 0 then
  local keys = {unpack_(string.rep('s', samples), ARGV[6])}
  for i = 1, samples do wanted[3 + i] = root .. 'y:' .. keys[i] end
end
local found = call('MGET', unpack(wanted))
if lost(found[1]) then return 'LOST' .. (found[1] or '') end

local end_hold, leave, sweep = endings()
local stored = found[2]
local oldest = stored
if not stored or tonumber(stored) <= now then
  local ended
  oldest, ended = sweep(carried and {unpack(carried.names, 3, 2 + carried.m)} or {}, T, now)
  if ended then found = call('MGET', unpack(wanted)) end
end

local function answer(ended, h, deadline, differs, spent)
  return pack('<BddBB', ended, now, deadline or 0, differs and 1 or 0, h and h.state or 0) .. (spent or '') .. id
end

if ARGV[5] ~= '' and not advance(ARGV[5]) then return answer(3, {state = SETTLED}) end
local kept = found[3] and read_hold(found[3])
local longer = carried and kept and (kept.state == EXPIRED or kept.state == CHARGED) and PROVISIONAL or 0
local h = kept and (kept.state == OPEN or now < kept.until_ + longer) and kept
-- One that is forgotten may have had a final end, from another copy.
if not h and carried and (carried.state > EXPIRED or now - carried.deadline + carried.timeout < T.remember) then
  h = carried
end
if not h then
  if bury == 1 then
    write_hold(id, {
      state = RELEASED, created = now, deadline = now, timeout = 0, cost = -1, tokens = -1, until_ = now + T.remember,
      n = 0, m = 0,
    }, T.remember + STEP, '\0\0')
  end
  return answer(5)
end

-- Keep the accounts without a window of their own, in which an extended hold counts as long as it is open.
local function prolong()
  local rules = {unpack_('<' .. string.rep(RULE, h.n), h.shape)}
  for i = 1, h.n do
    local kind, length, key = rules[6 * i - 4], rules[6 * i], h.names[2 + h.m + i]
    if kind == ROLLING or kind == GAUGE then
      local name = root .. 'a:' .. key
      local raw = call('GET', name)
      if raw and kind == ROLLING then roll(name, key, read_log(raw), length, now) end
      if raw then call('PEXPIRE', name, ttl_of(kind, 0, length, 0, T, now)) end
    end
  end
end

if given < 0 then renew(now) end
if ending == 2 then
  if h.state ~= OPEN then return answer(h.state == RELEASED and 4 or 3, h) end
  leave(id, h)
  h.timeout, h.deadline = T.timeout, now + T.timeout
  enter(id, h.deadline, h.timeout, h.m, h.names, stored, oldest)
  write_hold(id, h, T.timeout + UNSWEPT)
  prolong()
  return answer(6, h, h.deadline)
end

if ending == 1 then
  if h.state == SETTLED then return answer(3, h) end
  if h.state == RELEASED then return answer(4, h) end
  return answer(1, h, 0, false, end_hold(id, h, RELEASED, 0, 0, T, now, ARGV[4]))
end

if h.state == SETTLED then
  local differs = final == 1
    and ((cost >= 0 and h.cost >= 0 and cost ~= h.cost) or (tokens >= 0 and h.tokens >= 0 and tokens ~= h.tokens))
  return answer(3, h, 0, differs)
end
if h.state ~= OPEN and final == 0 then return answer(h.state == RELEASED and 4 or 3, h) end
if final == 0 then return answer(0, h, 0, false, end_hold(id, h, CHARGED, -1, -1, T, now, ARGV[4])) end
local late = h.state ~= OPEN
local spent = end_hold(id, h, SETTLED, cost, tokens, T, now, ARGV[4])
for i = 1, samples do add_sample(wanted[3 + i], found[3 + i], unpack_('<d', ARGV[7], 8 * i - 7), now) end
return answer(late and 2 or 0, h, 0, false, spent)
