-- What all scripts share; it is put before each of them. The state machine is that of transitions/machine.py.
--
-- Stored, all under KEYS[1] = "lbh:{namespace}:", so that one cluster slot holds a namespace. Numbers are packed
-- doubles (whole, up to 2^53), times are ms since the epoch, amounts are in the meter's unit (nano-dollars for usd).
--   a:<account>            spent, reserved, start            or, of a rolling window:
--                          reserved, total, count, then per slot: number, sum, entries kept singly
--   a:<account>/<slot>     the entries of a slot kept singly: at, amount
--   u:<utterance>          start, last, calls, then the accounts it was counted in, each followed by a space
--   h:<hold>               state, created, deadline, timeout, cost, tokens, until, number of rules and scopes,
--                          rules, held, starts, then content, note, scopes, account keys as zero-ended strings
--   o:<scope>              sorted set of open holds by deadline; "o:" is the global one
--   x                      sorted set of expired holds by the time until which they are known
-- A rule is: meter, kind, scope (0 global, 1 tenant, 2 user and answer), limit, end of window, length of window.

local root = KEYS[1]
local call, pack, unpack_ = redis.call, struct.pack, struct.unpack
local min, max, floor = math.min, math.max, math.floor

local USD, TOKENS, CALLS, UTTERANCES, IN_FLIGHT = 1, 2, 3, 4, 5
local CALENDAR, FIXED, ROLLING, ANSWER, GAUGE = 1, 2, 3, 4, 5
local OPEN, EXPIRED, RELEASED, CHARGED, SETTLED = 0, 1, 2, 3, 4
local MAX_AMOUNT = 9007199254740992
local SWEEP_LIMIT = 64
local GAUGE_TTL = 172800000
local UNSWEPT = 3024000000 -- 35 days: an open hold outlives every window it can be charged in
local RULE = 'BBBddd'
local empty = true -- whether the global index of open holds may have been empty

-- The store's time in ms, unless the caller's clock rules.
local function time_of(given)
  if given >= 0 then return given end
  local t = call('TIME')
  return t[1] * 1000 + floor(t[2] / 1000)
end

local function width_of(length) return -floor(-length / 60) end

local function slot_key(key, number) return root .. 'a:' .. key .. '/' .. string.format('%d', number) end

-- Until when an account is kept; see machine.expiry.
local function expiry(kind, ends, length, start, T, now)
  if kind == CALENDAR then return ends + length end
  if kind == FIXED then return start + 2 * length end
  if kind == ANSWER then return now + T.utterance_timeout + T.timeout end
  if kind == ROLLING then return now + length + width_of(length) + T.timeout end
  return now + max(GAUGE_TTL, 2 * T.timeout)
end

local function read_log(raw)
  if not raw then return {0, 0, 0, ''} end
  local reserved, total, count = unpack_('<ddd', raw)
  return {reserved, total, count, string.sub(raw, 25)}
end

-- Drop the slots that have left; return what is spent now and how many single entries live.
local function rolled(key, log, length, now)
  local oldest = floor((now - length + 1) / width_of(length))
  local slots, at = log[4], 1
  while at < #slots do
    local number, sum, count = unpack_('<ddd', slots, at)
    if number >= oldest then break end
    log[2], log[3], at = log[2] - sum, log[3] - count, at + 24
  end
  if at > 1 then
    slots = string.sub(slots, at)
    log[4] = slots
  end
  if slots == '' or unpack_('<d', slots) ~= oldest then return log[2], log[3] end
  local entries, total, count = call('GET', slot_key(key, oldest)), 0, 0
  for e = 1, entries and #entries or 0, 16 do
    local at_ms, amount = unpack_('<dd', entries, e)
    if at_ms <= now - length then total, count = total + amount, count + 1 end
  end
  return log[2] - total, log[3] - count
end

-- Book an amount at its reserve instant, unless that has left the window, and save the account; live is how many
-- single entries live, where that is known.
local function log_amount(key, log, length, at_ms, amount, T, now, live)
  local width = width_of(length)
  local ttl = length + width + T.timeout
  live = live or select(2, rolled(key, log, length, now))
  if amount ~= 0 and at_ms > now - length then
    local single = live < T.exact and 1 or 0
    local number, slots = floor(at_ms / width), log[4]
    local at = #slots - 23
    while at >= 1 and unpack_('<d', slots, at) > number do at = at - 24 end
    if at >= 1 and unpack_('<d', slots, at) == number then
      local _, sum, count = unpack_('<ddd', slots, at)
      slots = string.sub(slots, 1, at - 1) .. pack('<ddd', number, sum + amount, count + single) .. string.sub(slots, at + 24)
    else
      slots = string.sub(slots, 1, at + 23) .. pack('<ddd', number, amount, single) .. string.sub(slots, at + 24)
    end
    log[2], log[3], log[4] = log[2] + amount, log[3] + single, slots
    if single == 1 then
      local name = slot_key(key, number)
      if call('APPEND', name, pack('<dd', at_ms, amount)) == 16 then call('PEXPIRE', name, ttl + width) end
    end
  end
  call('SET', root .. 'a:' .. key, pack('<ddd', log[1], log[2], log[3]) .. log[4], 'PX', ttl)
end

-- The first instant at which so much has left the window, 0 if never.
local function frees_at(key, log, need, length, now)
  local freed, slots = 0, log[4]
  for at = 1, #slots, 24 do
    local number, total = unpack_('<dd', slots, at)
    local entries, singles = call('GET', slot_key(key, number)), {}
    for e = 1, entries and #entries or 0, 16 do
      local at_ms, amount = unpack_('<dd', entries, e)
      singles[#singles + 1] = {at_ms, amount}
      total = total - amount
    end
    table.sort(singles, function(a, b)
      if a[1] ~= b[1] then return a[1] < b[1] end
      return a[2] < b[2]
    end)
    for _, entry in ipairs(singles) do
      if entry[1] > now - length then
        freed = freed + entry[2]
        if freed >= need then return entry[1] + length end
      end
    end
    freed = freed + total
    if freed >= need then return (number + 1) * width_of(length) + length - 1 end
  end
  return 0
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
-- cost and tokens below 0 are not known: what was held stays charged.
local function end_hold(id, h, state, cost, tokens, T, now)
  local rules = {unpack_('<' .. string.rep(RULE, h.n), h.shape)}
  local names = {}
  for i = 1, h.n do names[i] = root .. 'a:' .. h.names[2 + h.m + i] end
  local accounts = h.n > 0 and call('MGET', unpack(names)) or {}
  for i = 1, h.n do
    local r = 6 * (i - 1)
    local meter, kind, key, held = rules[r + 1], rules[r + 2], h.names[2 + h.m + i], h.held[i]
    if meter ~= CALLS and meter ~= UTTERANCES and key ~= '' then
      local target = cost
      if meter == TOKENS then target = tokens elseif meter == IN_FLIGHT then target = 0 end
      if target < 0 then target = held end
      local before, freed = held, 0
      if meter == IN_FLIGHT or h.state == OPEN or h.state == RELEASED then before = 0 end
      if h.state == OPEN then freed = held end
      if freed ~= 0 or target ~= before then
        local length, start = rules[r + 6], h.starts[i]
        if kind == ROLLING then
          local log = read_log(accounts[i])
          log[1] = max(log[1] - freed, 0)
          log_amount(key, log, length, h.created, target - before, T, now)
        else
          local spent, reserved, began = 0, 0, start
          if accounts[i] then spent, reserved, began = unpack_('<ddd', accounts[i]) end
          local ttl = expiry(kind, rules[r + 5], length, start, T, now) - now
          if ttl > 0 and not ((kind == FIXED or kind == ANSWER) and began ~= start) then
            spent = min(max(spent + target - before, 0), MAX_AMOUNT)
            call('SET', names[i], pack('<ddd', spent, max(reserved - freed, 0), began), 'PX', ttl)
          end
        end
      end
    end
  end
  if h.state == OPEN then leave(id, h) end
  if h.state == EXPIRED then call('ZREM', root .. 'x', id) end
  h.state, h.until_ = state, now + T.remember
  if state == SETTLED then
    h.cost, h.tokens, h.n, h.m, h.shape, h.names = cost, tokens, 0, 0, '', {h.content, ''}
  elseif state == EXPIRED then
    call('ZADD', root .. 'x', h.until_, id)
    call('PEXPIRE', root .. 'x', T.remember)
  end
  write_hold(id, h, T.remember)
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
  call('ZREMRANGEBYSCORE', root .. 'x', '-inf', now)
end
