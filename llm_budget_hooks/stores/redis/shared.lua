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
--   d                      as text: an instant up to which no hold is due; unknown where it is missing
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

-- Constants; they are put in where they are used before the server gets the script.
local USD, TOKENS, CALLS, UTTERANCES, IN_FLIGHT = 1, 2, 3, 4, 5
local CALENDAR, FIXED, ROLLING, ANSWER, GAUGE = 1, 2, 3, 4, 5
local OPEN, EXPIRED, RELEASED, CHARGED, SETTLED = 0, 1, 2, 3, 4
local MAX_AMOUNT, NEVER = 9007199254740992, 9007199254740992
local FEWEST, SAMPLES, HISTORY = 5, 20, 2592000000
local JOURNAL = 3456000000
local STAMP, STAMP_EVERY, GAP, GAPS = 34560000000, 100, 500, 224
local SWEEP_LIMIT = 64
local GAUGE_TTL = 172800000
-- A hold that was charged what it held is kept so much longer than known, for a late truth.
local PROVISIONAL = 172800000
-- How far a clock may step back: what is known until some instant is kept so much longer.
local STEP = 60000
-- 35 days: an open hold outlives every window it can be charged in.
local UNSWEPT = 3024000000
local RULE = 'BBBddd'

-- The last argument is what the caller knows: an epoch and a time of which the store has known, within STAMP_EVERY.
-- Balances that were lost or set back are no new ones: the answer is LOST and the store's stamp, and nothing is changed.
-- Stretches without a stamp are kept, the newest first: who knows of a time in one has seen what is not there any more.
local stamp, last_stamp, gaps = nil, 0, ''
local function lost(found)
  local known, least = string.match(ARGV[#ARGV], '^(%S+) (%d+)$')
  if not known then return false end
  stamp, last_stamp, gaps = string.match(found or '', '^(%S+) (%d+)(.*)$')
  least, last_stamp = tonumber(least), tonumber(last_stamp)
  if stamp ~= known or last_stamp < least then return true end
  for from, to in string.gmatch(gaps, '(%d+)-(%d+)') do
    if tonumber(from) < least and least + STAMP_EVERY < tonumber(to) then return true end
  end
  return false
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

-- How long an account is kept from now on; see machine.expiry.
local function ttl_of(kind, ends, length, start, T, now)
  if kind == CALENDAR then return ends + length - now end
  if kind == FIXED then return start + 2 * length - now end
  if kind == ANSWER then return T.utterance_timeout + T.timeout end
  if kind == ROLLING then return length - floor(-length / 60) + T.timeout end
  return max(GAUGE_TTL, 2 * T.timeout)
end

-- The account of a rolling window; a new one, of which all up to an instant has left, if there is none.
local function read_log(raw, left)
  if not raw then return {0, 0, 0, NEVER, 0, '', left} end
  local reserved, total, count, oldest, serial, gone = unpack_('<dddddd', raw)
  return {reserved, total, count, oldest, serial, string.sub(raw, 49), gone}
end

local function log_text(log) return pack('<dddddd', log[1], log[2], log[3], log[4], log[5], log[7]) .. log[6] end

-- Take what has left the window out of a rolling account.
local function roll(name, key, log, length, now)
  local gone, slots, at = now - length, log[6], 1
  if log[4] > gone and slots == '' then return end
  local oldest = floor((gone + 1) / -floor(-length / 60))
  while at < #slots do
    local number, sum = unpack_('<dd', slots, at)
    if number >= oldest then break end
    log[2], at = max(log[2] - sum, 0), at + 16
  end
  if at > 1 then log[6] = string.sub(slots, at) end
  if log[4] <= gone then
    local entries, upto = root .. 'e:' .. key, string.format('%d', gone)
    local dead = call('ZRANGEBYSCORE', entries, '-inf', upto)
    for d = 1, #dead do
      local _, amount = unpack_('<dd', dead[d])
      log[2] = log[2] - amount
    end
    log[2] = max(log[2], 0)
    log[3] = log[3] - #dead
    call('ZREMRANGEBYSCORE', entries, '-inf', upto)
    local first = call('ZRANGE', entries, 0, 0, 'WITHSCORES')
    log[4] = first[2] and tonumber(first[2]) or NEVER
  elseif at == 1 then
    return
  end
  if gone > log[7] then log[7] = gone end
  call('SET', name, log_text(log), 'KEEPTTL')
end

-- Book an amount at its reserve instant, unless that has left the window, and save the account. What is taken back is
-- booked only while what it is about is in the sum, whatever the clock shows. The sum stays from 0 to MAX_AMOUNT, as
-- what it has no room for is cut. Beyond the entries that are kept singly an amount is added to its slot's sum, and what is
-- taken back goes a slot before, so that it leaves no later than what it is about.
local function log_amount(name, key, log, length, at_ms, amount, T, now)
  amount = max(min(amount, MAX_AMOUNT - log[2]), -log[2])
  local width = -floor(-length / 60)
  local ttl = length + width + T.timeout
  if amount ~= 0 and at_ms > now - length and (amount > 0 or at_ms > log[7]) then
    if log[3] < T.exact then
      log[2] = log[2] + amount
      local entries = root .. 'e:' .. key
      log[3], log[5] = log[3] + 1, log[5] + 1
      if at_ms < log[4] then log[4] = at_ms end
      if log[5] == 1 then call('DEL', entries) end -- the entries of an account that has ended before them
      call('ZADD', entries, at_ms, pack('<dd', log[5], amount))
      call('PEXPIRE', entries, 2 * ttl)
    else
      local number, slots = floor(at_ms / width), log[6]
      if amount < 0 then number = number - 1 end
      if amount > 0 or number >= floor((now - length + 1) / width) then
        local at = #slots - 15
        log[2] = log[2] + amount
        while at >= 1 and unpack_('<d', slots, at) > number do at = at - 16 end
        if at >= 1 and unpack_('<d', slots, at) == number then
          local _, sum = unpack_('<dd', slots, at)
          log[6] = string.sub(slots, 1, at - 1) .. pack('<dd', number, sum + amount) .. string.sub(slots, at + 16)
        else
          log[6] = string.sub(slots, 1, at + 15) .. pack('<dd', number, amount) .. string.sub(slots, at + 16)
        end
      end
    end
  end
  call('SET', name, log_text(log), 'PX', ttl)
end

-- The first instant at which so much has left the window, 0 if never. A slot is as old as the last instant in it; what
-- is reserved is given as entries: instant, amount.
local function frees_at(key, log, need, length, holds)
  local freed, last, others, at, width = 0, nil, holds or {}, 1, -floor(-length / 60)
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

-- Append a row to the stream for the ledger, or count that there was no room for it.
local function post(kind, id, was, now, facts, actual, most)
  if call('XLEN', root .. 'q') >= most then
    call('INCR', root .. 'qd')
  else
    call('XADD', root .. 'q', '*', 'k', kind, 'i', id, 'w', was, 't', string.format('%d', now), 'f', facts, 'a', actual)
  end
end

-- Whether a hold's note has what a ledger wants, so that each of its ends leaves a row: a JSON array.
local function for_ledger(note)
  return string.byte(note) == 91
end

-- Add a run to a history, of which what is stored is at hand.
local function add_sample(name, raw, value, now)
  call('SET', name, string.sub(raw or '', -16 * (SAMPLES - 1)) .. pack('<dd', now, value), 'PX', HISTORY)
end

-- Whether a number of a journal comes for the first time; from now on it and those before it do not.
local function advance(place)
  local journal, number = string.match(place, '^(%S*) (%d+)$')
  local name = root .. 'j:' .. journal
  if tonumber(call('GET', name) or -1) >= tonumber(number) then return false end
  call('SET', name, number, 'PX', JOURNAL)
  return true
end

local function doubles(list, count) return count > 0 and pack('<' .. string.rep('d', count), unpack(list, 1, count)) or '' end

local function read_hold(raw)
  local h = {}
  local at
  h.state, h.created, h.deadline, h.timeout, h.cost, h.tokens, h.until_, h.n, h.m, at = unpack_('<BddddddBB', raw)
  local n = h.n
  h.shape = string.sub(raw, at, at + 27 * n - 1)
  at = at + 27 * n
  if n > 0 then
    local format = '<' .. string.rep('d', n)
    h.held = {unpack_(format, raw, at)}
    h.starts = {unpack_(format, raw, at + 8 * n)}
  end
  h.names = {unpack_(string.rep('s', 2 + h.m + n), raw, at + 16 * n)}
  h.content, h.note = h.names[1], h.names[2]
  return h
end

-- Store a hold; what is given of it is packed already.
local function write_hold(id, h, ttl, packed)
  local head = pack('<BddddddBB', h.state, h.created, h.deadline, h.timeout, h.cost, h.tokens, h.until_, h.n, h.m)
  if not packed then
    local count = 2 + h.m + h.n
    local numbers = h.n > 0 and doubles(h.held, h.n) .. doubles(h.starts, h.n) or ''
    packed = h.shape .. numbers .. table.concat(h.names, '\0', 1, count) .. '\0'
  end
  call('SET', root .. 'h:' .. id, head .. packed, 'PX', ttl)
end

-- Put an open hold into the indexes. What is stored as d and the deadline of the oldest hold, if there is one, are texts.
local function enter(id, deadline, timeout, m, names, stored, oldest)
  local score, ttl = string.format('%d', deadline), string.format('%d', timeout + UNSWEPT)
  for s = 3, 2 + m do
    local index = root .. 'o:' .. names[s]
    call('ZADD', index, score, id)
    call('PEXPIRE', index, ttl)
  end
  if not oldest or tonumber(oldest) > deadline then oldest = score end
  if oldest ~= stored then call('SET', root .. 'd', oldest, 'PX', ttl) end
end

-- What ends holds, made where it is needed: most reserves end none.
local function endings()
  local function kind_of(state) return ({[0] = 'open', 'expired', 'released', 'charged', 'settled'})[state] end

  local function leave(id, h)
    for s = 3, 2 + h.m do call('ZREM', root .. 'o:' .. h.names[s], id) end
  end

  -- Move a hold into an ended state: in each account what was booked so far gives way to the actual amounts.
  -- cost and tokens below 0 are not known: what was held stays charged. Of a hold that is lost, and known from its owner
  -- alone, nothing is reserved that could be freed. Returns what is spent in each account now.
  local function end_hold(id, h, state, cost, tokens, T, now, actual)
    local n, first, was = h.n, 2 + h.m, h.state
    local rules = {unpack_('<' .. string.rep(RULE, n), h.shape)}
    local names, keys, accounts, booked = {}, h.names, {}, {}
    for i = 1, n do names[i] = root .. 'a:' .. keys[first + i] end
    if n > 0 then accounts = call('MGET', unpack(names)) end
    for i = 1, n do
      booked[i] = 0
      local r = 6 * i - 6
      local meter, kind, key, held = rules[r + 1], rules[r + 2], keys[first + i], h.held[i]
      if meter ~= CALLS and meter ~= UTTERANCES and key ~= '' then
        local target, before, freed = cost, held, 0
        if meter == TOKENS then target = tokens elseif meter == IN_FLIGHT then target = 0 end
        if target < 0 then target = held end
        if meter == IN_FLIGHT or was == OPEN or was == RELEASED then before = 0 end
        if was == OPEN and not h.lost then freed = held end
        if freed ~= 0 or target ~= before then
          local raw, length, start = accounts[i], rules[r + 6], h.starts[i]
          if kind == ROLLING then
            local log = read_log(raw, target > before and 0 or now)
            if raw then roll(names[i], key, log, length, now) end
            log[1] = max(log[1] - freed, 0)
            log_amount(names[i], key, log, length, h.created, target - before, T, now)
            booked[i] = log[2]
          else
            local spent, reserved, began = 0, 0, start
            if raw then spent, reserved, began = unpack_('<ddd', raw) end
            local ttl = ttl_of(kind, rules[r + 5], length, start, T, now)
            if ttl > 0 and not ((kind == FIXED or kind == ANSWER) and began ~= start) then
              spent = min(max(spent + target - before, 0), MAX_AMOUNT)
              booked[i] = spent
              raw = raw and (kind == CALENDAR or kind == FIXED)
              local text = pack('<ddd', spent, max(reserved - freed, 0), began)
              if raw then call('SET', names[i], text, 'KEEPTTL') else call('SET', names[i], text, 'PX', ttl) end
            end
          end
        end
      end
    end
    if was == OPEN then leave(id, h) end
    if was == EXPIRED then call('ZREM', root .. 'x', id) end
    if T.outbox > 0 and for_ledger(h.note) then post(kind_of(state), id, kind_of(was), now, h.note, actual or '', T.outbox) end
    h.state, h.until_ = state, now + T.remember
    local ttl, packed = T.remember + STEP, nil
    if state == SETTLED then
      h.cost, h.tokens, h.n, h.m, packed = cost, tokens, 0, 0, h.content .. '\0\0'
    elseif state == EXPIRED then
      call('ZADD', root .. 'x', h.until_, id)
      call('PEXPIRE', root .. 'x', T.remember + STEP)
    end
    if state == EXPIRED or state == CHARGED then ttl = ttl + PROVISIONAL end
    write_hold(id, h, ttl, packed)
    return doubles(booked, n)
  end

  local function first() return call('ZRANGE', root .. 'o:', 0, 0, 'WITHSCORES')[2] end

  -- End due holds, at most SWEEP_LIMIT, in the order of the given scopes, the last of which is the global one. Returns the
  -- deadline of the oldest hold that is left, and whether any was ended.
  local function sweep(scopes, T, now)
    local oldest = first()
    if not oldest or tonumber(oldest) > now then return oldest, false end
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
    return first(), true
  end

  return end_hold, leave, sweep
end
