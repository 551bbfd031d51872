-- Settle, release or extend one hold.
--
-- KEYS[1]  the namespace's root
-- ARGV[1]  now (-1: the server's time), ending (0 settle, 1 release, 2 extend), timeout, remember, utterance
--          timeout, entries kept singly, cost and tokens (-1: not known), final (0 or 1), bury (0 or 1), most rows
--          in the stream (0: there is none); doubles
-- ARGV[2]  the hold's id
-- ARGV[3]  the hold as its owner carries it, as stored under h:<hold>, or empty
-- ARGV[4]  what goes into the stream beside the hold's note
-- ARGV[5]  the histories that a final settle adds to, as zero-ended strings
-- ARGV[6]  a value for each, packed doubles
-- ARGV[7]  of a replay, its journal and its number in it, else empty
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

local scopes = {}
if carried then
  for s = 3, 2 + carried.m do scopes[#scopes + 1] = carried.names[s] end
end
sweep(scopes, T, now)

local function answer(ended, h, deadline, differs, spent)
  return pack('<BddBB', ended, now, deadline or 0, differs and 1 or 0, h and h.state or 0) .. (spent or '') .. id
end

if ARGV[7] ~= '' and not advance(ARGV[7]) then return answer(3, {state = SETTLED}) end
local kept = call('GET', root .. 'h:' .. id)
local h = known_hold(kept, now)
if not h and carried then -- it may have had a final end, from another copy, that is forgotten
  local k = kept and read_hold(kept)
  local charged = k and (k.state == EXPIRED or k.state == CHARGED) and now < k.until_ + PROVISIONAL
  if charged or carried.state > EXPIRED or now - carried.deadline + carried.timeout < T.remember then h = carried end
end
if not h then
  if bury == 1 then
    write_hold(id, {
      state = RELEASED, created = now, deadline = now, timeout = 0, cost = -1, tokens = -1, until_ = now + T.remember,
      n = 0, m = 0, shape = '', names = {'', ''},
    }, T.remember + STEP)
  end
  return answer(5)
end

if given < 0 then renew(now) end
if ending == 2 then
  if h.state ~= OPEN then return answer(h.state == RELEASED and 4 or 3, h) end
  leave(id, h)
  h.timeout, h.deadline = T.timeout, now + T.timeout
  enter(id, h)
  write_hold(id, h, T.timeout + UNSWEPT)
  prolong(h, T, now)
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
if ARGV[5] ~= '' then
  local count = #ARGV[6] / 8
  local keys, values = {unpack_(string.rep('s', count), ARGV[5])}, {unpack_('<' .. string.rep('d', count), ARGV[6])}
  for i = 1, count do add_sample(keys[i], values[i], now) end
end
return answer(late and 2 or 0, h, 0, false, spent)
