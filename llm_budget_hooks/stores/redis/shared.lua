-- What all scripts share; it is put before each of them. The state machine is that of transitions/machine.py.
--
-- Stored, all under KEYS[1] = "lbh:{namespace}:", so that one cluster slot holds a namespace. Numbers are packed
-- doubles (whole, up to 2^53), times are ms since the epoch, amounts are in the meter's unit (nano-dollars for usd).
--   a:<account>            spent, reserved, start            or, of a rolling window:
--                          reserved, total, count, oldest, serial, until when all has left, then per slot: number, sum
--   e:<account>            sorted set of a rolling window's entries by instant: serial, amount
--   u:<utterance>          start, last, calls, then the accounts it was counted in, each followed by a space
--   h:<hold>               state, created, deadline, timeout, cost, tokens, until, number of rules and scopes,
--                          rules, held, starts, then content, note, scopes, account keys as zero-ended strings
--   o:<scope>              sorted set of open holds by deadline; "o:" is the global one
--   x                      sorted set of expired holds by the time until which they are known
--   r, s                   how often the settings were changed, and the hash of them; both for ever
--   y:<history>            the last runs: at, value
--   m:<mark>               how often it was asked, when it last said yes
--   z                      as text: the epoch of these balances, when it was last written (the time only goes up), and
--                          from when to when it was not, the newest first
--   j:<journal>            how far a journal was replayed, as text
--   q, qd, ql              the stream to the ledger, how many rows it had no room for, and who drains it
-- A rule is: meter, kind, scope (0 global, 1 tenant, 2 user and answer), limit, end of window, length of window.

local root = KEYS[1]
local call, pack, unpack_ = redis.call, struct.pack, struct.unpack
local min, max, floor = math.min, math.max, math.floor

local USD, TOKENS, CALLS, UTTERANCES, IN_FLIGHT = 1, 2, 3, 4, 5
local CALENDAR, FIXED, ROLLING, ANSWER, GAUGE = 1, 2, 3, 4, 5
local OPEN, EXPIRED, RELEASED, CHARGED, SETTLED = 0, 1, 2, 3, 4
local MAX_AMOUNT = 9007199254740992
local NEVER = MAX_AMOUNT
local KINDS = {[0] = 'open', 'expired', 'released', 'charged', 'settled'}
local FEWEST, SAMPLES, HISTORY = 5, 20, 2592000000
local JOURNAL = 3456000000
local STAMP, STAMP_EVERY, GAP, GAPS = 34560000000, 100, 500, 224
local SWEEP_LIMIT = 64
local GAUGE_TTL = 172800000
local PROVISIONAL = 172800000 -- a hold that was charged what it held is kept so much longer than known, for a late truth
local STEP = 60000 -- how far a clock may step back: what is known until some instant is kept so much longer
local UNSWEPT = 3024000000 -- 35 days: an open hold outlives every window it can be charged in
local RULE = 'BBBddd'
local empty = true -- whether the global index of open holds may have been empty

-- The last argument is what the caller knows: an epoch and a time of which the store has known, within STAMP_EVERY.
-- Balances that were lost or set back are no new ones: the answer is LOST and the store's stamp, and nothing is changed.
-- Stretches without a stamp are kept, the newest first: who knows of a time in one has seen what is not there any more.
local stamp, last_stamp, gaps = nil, 0, ''
if ARGV[#ARGV] ~= '' then
  local found = call('GET', root .. 'z') or ''
  local known, least = string.match(ARGV[#ARGV], '^(%S+) (%d+)$')
  stamp, last_stamp, gaps = string.match(found, '^(%S+) (%d+)(.*)$')
  least, last_stamp = tonumber(least), tonumber(last_stamp)
  local lost = stamp ~= known or last_stamp < least
  if not lost and gaps ~= '' then
    for from, to in string.gmatch(gaps, '(%d+)-(%d+)') do
      lost = lost or (tonumber(from) < least and least + STAMP_EVERY < tonumber(to))
    end
  end
  if lost then return 'LOST' .. found end
end

-- Write down that the balances are of this time, now and then. A clock that was set back ends what its gaps say.
local function renew(now)
  if not stamp then return end
  local last = last_stamp
  if now >= last_stamp + STAMP_EVERY then
    if now >= last_stamp + GAP then gaps = string.sub(string.format(' %d-%d', last_stamp, now) .. gaps, 1, GAPS) end
    last = now
  elseif now < last_stamp and gaps ~= '' then
    gaps = ''
  else
    return
  end
  call('SET', root .. 'z', stamp .. string.format(' %d', last) .. gaps, 'PX', STAMP)
end

-- The store's time in ms, unless the caller's clock rules.
local function time_of(given)
  if given >= 0 then return given end
  local t = call('TIME')
  return t[1] * 1000 + floor(t[2] / 1000)
end

local function width_of(length) return -floor(-length / 60) end

-- Until when an account is kept; see machine.expiry.
local function expiry(kind, ends, length, start, T, now)
  if kind == CALENDAR then return ends + length end
  if kind == FIXED then return start + 2 * length end
  if kind == ANSWER then return now + T.utterance_timeout + T.timeout end
  if kind == ROLLING then return now + length + width_of(length) + T.timeout end
  return now + max(GAUGE_TTL, 2 * T.timeout)
end

-- The account of a rolling window; a new one, of which all up to an instant has left, if there is none.
local function read_log(raw, left)
  if not raw then return {0, 0, 0, NEVER, 0, '', left} end
  local reserved, total, count, oldest, serial, gone = unpack_('<dddddd', raw)
  return {reserved, total, count, oldest, serial, string.sub(raw, 49), gone}
end

local function log_text(log) return pack('<dddddd', log[1], log[2], log[3], log[4], log[5], log[7]) .. log[6] end

-- Take what has left the window out of a rolling account.
local function roll(key, log, length, now)
  local oldest, slots, at = floor((now - length + 1) / width_of(length)), log[6], 1
  while at < #slots do
    local number, sum = unpack_('<dd', slots, at)
    if number >= oldest then break end
    log[2], at = max(log[2] - sum, 0), at + 16
  end
  if at > 1 then log[6] = string.sub(slots, at) end
  local gone = now - length
  if log[4] <= gone then
    local name, upto = root .. 'e:' .. key, string.format('%d', gone)
    local dead = call('ZRANGEBYSCORE', name, '-inf', upto)
    for d = 1, #dead do
      local _, amount = unpack_('<dd', dead[d])
      log[2] = log[2] - amount
    end
    log[2] = max(log[2], 0)
    log[3] = log[3] - #dead
    call('ZREMRANGEBYSCORE', name, '-inf', upto)
    local first = call('ZRANGE', name, 0, 0, 'WITHSCORES')
    log[4] = first[2] and tonumber(first[2]) or NEVER
  elseif at == 1 then
    return
  end
  log[7] = max(log[7], gone)
  call('SET', root .. 'a:' .. key, log_text(log), 'KEEPTTL')
end

-- Add an amount to its slot's sum. What is taken back goes a slot before, so that it leaves no later than what it is
-- about.
local function coarse(log, length, at_ms, amount, now)
  local width, slots = width_of(length), log[6]
  local number, at = floor(at_ms / width), #slots - 15
  if amount < 0 then
    number = number - 1
    if number < floor((now - length + 1) / width) then return end
  end
  log[2] = log[2] + amount
  while at >= 1 and unpack_('<d', slots, at) > number do at = at - 16 end
  if at >= 1 and unpack_('<d', slots, at) == number then
    local _, sum = unpack_('<dd', slots, at)
    log[6] = string.sub(slots, 1, at - 1) .. pack('<dd', number, sum + amount) .. string.sub(slots, at + 16)
  else
    log[6] = string.sub(slots, 1, at + 15) .. pack('<dd', number, amount) .. string.sub(slots, at + 16)
  end
end

-- Book an amount at its reserve instant, unless that has left the window, and save the account. What is taken back is
-- booked only while what it is about is in the sum, whatever the clock shows. The sum stays from 0 to MAX_AMOUNT, as
-- what it has no room for is cut.
local function log_amount(key, log, length, at_ms, amount, T, now)
  amount = max(min(amount, MAX_AMOUNT - log[2]), -log[2])
  local width = width_of(length)
  local ttl = length + width + T.timeout
  if amount ~= 0 and at_ms > now - length and (amount > 0 or at_ms > log[7]) then
    if log[3] < T.exact then
      log[2] = log[2] + amount
      local name = root .. 'e:' .. key
      log[3], log[4], log[5] = log[3] + 1, min(log[4], at_ms), log[5] + 1
      if log[5] == 1 then call('DEL', name) end -- the entries of an account that has ended before them
      call('ZADD', name, at_ms, pack('<dd', log[5], amount))
      call('PEXPIRE', name, 2 * ttl)
    else
      coarse(log, length, at_ms, amount, now)
    end
  end
  call('SET', root .. 'a:' .. key, log_text(log), 'PX', ttl)
end

-- The first instant at which so much has left the window, 0 if never. A slot is as old as the last instant in it; what
-- is reserved is given as entries: instant, amount.
local function frees_at(key, log, need, length, holds)
  local freed, last, others, at, width = 0, nil, holds or {}, 1, width_of(length)
  local name, from = root .. 'e:' .. key, 0
  for s = 1, #log[6], 16 do
    local number, sum = unpack_('<dd', log[6], s)
    others[#others + 1] = {(number + 1) * width - 1, sum}
  end
  table.sort(others, function(one, other) return one[1] < other[1] end)
  local function leaves(instant, amount) -- whether enough has left before this does
    if last and instant ~= last and freed >= need then return true end
    freed, last = freed + amount, instant
  end
  local function others_before(instant)
    while at <= #others do
      if others[at][1] >= instant then return false end
      if leaves(others[at][1], others[at][2]) then return true end
      at = at + 1
    end
  end
  while true do
    local some = call('ZRANGE', name, from, from + 255, 'WITHSCORES')
    for e = 1, #some, 2 do
      local at_ms = tonumber(some[e + 1])
      local _, amount = unpack_('<dd', some[e])
      if others_before(at_ms) or leaves(at_ms, amount) then return last + length end
    end
    if #some < 512 then break end
    from = from + 256
  end
  if others_before(NEVER) then return last + length end
  return last and freed >= need and last + length or 0
end

-- Whether a hold's note has what a ledger wants, so that each of its ends leaves a row: a JSON array.
local function for_ledger(note)
  return string.byte(note) == 91
end

-- Append a row to the stream for the ledger, or count that there was no room for it.
local function post(kind, id, was, now, facts, actual, most)
  if call('XLEN', root .. 'q') >= most then
    call('INCR', root .. 'qd')
  else
    call('XADD', root .. 'q', '*', 'k', kind, 'i', id, 'w', was, 't', string.format('%d', now), 'f', facts, 'a', actual)
  end
end

-- Add a run to a history.
local function add_sample(key, value, now)
  local name = root .. 'y:' .. key
  local runs = string.sub(call('GET', name) or '', -16 * (SAMPLES - 1))
  call('SET', name, runs .. pack('<dd', now, value), 'PX', HISTORY)
end

local function read_hold(raw)
  local h = {}
  local at
  h.state, h.created, h.deadline, h.timeout, h.cost, h.tokens, h.until_, h.n, h.m, at = unpack_('<BddddddBB', raw)
  h.shape = string.sub(raw, at, at + 27 * h.n - 1)
  at = at + 27 * h.n
  h.held = {unpack_('<' .. string.rep('d', h.n), raw, at)}
  h.starts = {unpack_('<' .. string.rep('d', h.n), raw, at + 8 * h.n)}
  h.names = {unpack_(string.rep('s', 2 + h.m + h.n), raw, at + 16 * h.n)}
  h.content, h.note = h.names[1], h.names[2]
  return h
end

-- A hold that is known now: an ended one is forgotten in time.
local function known_hold(raw, now)
  if not raw then return nil end
  local h = read_hold(raw)
  if h.state ~= OPEN and now >= h.until_ then return nil end
  return h
end

-- Whether a number of a journal comes for the first time; from now on it and those before it do not.
local function advance(place)
  local journal, number = string.match(place, '^(%S*) (%d+)$')
  local name = root .. 'j:' .. journal
  if tonumber(call('GET', name) or -1) >= tonumber(number) then return false end
  call('SET', name, number, 'PX', JOURNAL)
  return true
end

local function strings(list, count) return table.concat(list, '\0', 1, count) .. '\0' end

local function doubles(list, count) return count > 0 and pack('<' .. string.rep('d', count), unpack(list, 1, count)) or '' end

-- Store a hold; its numbers (held, starts) and texts are given where they are packed already.
local function write_hold(id, h, ttl, numbers, texts)
  local raw = pack('<BddddddBB', h.state, h.created, h.deadline, h.timeout, h.cost, h.tokens, h.until_, h.n, h.m)
  numbers = numbers or (h.n > 0 and doubles(h.held, h.n) .. doubles(h.starts, h.n) or '')
  call('SET', root .. 'h:' .. id, raw .. h.shape .. numbers .. (texts or strings(h.names, 2 + h.m + h.n)), 'PX', ttl)
end

-- The time to live of the global index is renewed now and then, that of the narrow ones always.
local function enter(id, h)
  for s = 3, 2 + h.m do
    local scope = h.names[s]
    local name = root .. 'o:' .. scope
    call('ZADD', name, h.deadline, id)
    if scope ~= '' or empty or h.created % 64 < 2 then call('PEXPIRE', name, h.timeout + UNSWEPT) end
  end
end

local function leave(id, h)
  for s = 3, 2 + h.m do call('ZREM', root .. 'o:' .. h.names[s], id) end
end

-- Move a hold into an ended state: in each account what was booked so far gives way to the actual amounts.
-- cost and tokens below 0 are not known: what was held stays charged. Of a hold that is lost, and known from its owner
-- alone, nothing is reserved that could be freed. Returns what is spent in each account now.
local function end_hold(id, h, state, cost, tokens, T, now, actual)
  local rules = {unpack_('<' .. string.rep(RULE, h.n), h.shape)}
  local names = {}
  for i = 1, h.n do names[i] = root .. 'a:' .. h.names[2 + h.m + i] end
  local accounts, booked = h.n > 0 and call('MGET', unpack(names)) or {}, {}
  for i = 1, h.n do
    booked[i] = 0
    local r = 6 * (i - 1)
    local meter, kind, key, held = rules[r + 1], rules[r + 2], h.names[2 + h.m + i], h.held[i]
    if meter ~= CALLS and meter ~= UTTERANCES and key ~= '' then
      local target = cost
      if meter == TOKENS then target = tokens elseif meter == IN_FLIGHT then target = 0 end
      if target < 0 then target = held end
      local before, freed = held, 0
      if meter == IN_FLIGHT or h.state == OPEN or h.state == RELEASED then before = 0 end
      if h.state == OPEN and not h.lost then freed = held end
      if freed ~= 0 or target ~= before then
        local length, start = rules[r + 6], h.starts[i]
        if kind == ROLLING then
          local log = read_log(accounts[i], target > before and 0 or now)
          if accounts[i] then roll(key, log, length, now) end
          log[1] = max(log[1] - freed, 0)
          log_amount(key, log, length, h.created, target - before, T, now)
          booked[i] = log[2]
        else
          local spent, reserved, began = 0, 0, start
          if accounts[i] then spent, reserved, began = unpack_('<ddd', accounts[i]) end
          local ttl = expiry(kind, rules[r + 5], length, start, T, now) - now
          if ttl > 0 and not ((kind == FIXED or kind == ANSWER) and began ~= start) then
            spent = min(max(spent + target - before, 0), MAX_AMOUNT)
            booked[i] = spent
            call('SET', names[i], pack('<ddd', spent, max(reserved - freed, 0), began), 'PX', ttl)
          end
        end
      end
    end
  end
  if h.state == OPEN then leave(id, h) end
  if h.state == EXPIRED then call('ZREM', root .. 'x', id) end
  if T.outbox > 0 and for_ledger(h.note) then post(KINDS[state], id, KINDS[h.state], now, h.note, actual or '', T.outbox) end
  local count = h.n
  h.state, h.until_ = state, now + T.remember
  if state == SETTLED then
    h.cost, h.tokens, h.n, h.m, h.shape, h.names = cost, tokens, 0, 0, '', {h.content, ''}
  elseif state == EXPIRED then
    call('ZADD', root .. 'x', h.until_, id)
    call('PEXPIRE', root .. 'x', T.remember + STEP)
  end
  write_hold(id, h, T.remember + STEP + ((state == EXPIRED or state == CHARGED) and PROVISIONAL or 0))
  return doubles(booked, count)
end

-- Keep the accounts without a window of their own, in which an extended hold counts as long as it is open.
local function prolong(h, T, now)
  local rules = {unpack_('<' .. string.rep(RULE, h.n), h.shape)}
  for i = 1, h.n do
    local kind, length, key = rules[6 * i - 4], rules[6 * i], h.names[2 + h.m + i]
    if kind == ROLLING or kind == GAUGE then
      local raw = call('GET', root .. 'a:' .. key)
      if raw and kind == ROLLING then roll(key, read_log(raw), length, now) end
      if raw then call('PEXPIRE', root .. 'a:' .. key, expiry(kind, 0, length, 0, T, now) - now) end
    end
  end
end

-- End due holds, at most SWEEP_LIMIT, in the order of the given scopes, the last of which is the global one.
local function sweep(scopes, T, now)
  local oldest = call('ZRANGE', root .. 'o:', 0, 0, 'WITHSCORES')
  empty = #oldest == 0
  if empty or tonumber(oldest[2]) > now then return end
  empty = true
  local room = SWEEP_LIMIT
  if #scopes == 0 then scopes = {''} end
  for _, scope in ipairs(scopes) do
    local due = room > 0 and call('ZRANGEBYSCORE', root .. 'o:' .. scope, '-inf', now, 'LIMIT', 0, room) or {}
    for _, id in ipairs(due) do
      local raw = call('GET', root .. 'h:' .. id)
      if raw then
        end_hold(id, read_hold(raw), EXPIRED, -1, -1, T, now)
        room = room - 1
      else
        call('ZREM', root .. 'o:' .. scope, id)
      end
    end
  end
  call('ZREMRANGEBYSCORE', root .. 'x', '-inf', now - STEP)
end
