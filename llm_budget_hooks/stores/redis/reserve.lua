-- Hold, check or charge amounts against all rules of a call, all or nothing.
--
-- KEYS[1]  the namespace's root
-- ARGV[1]  now (-1: the server's time), from and until (the time the keys are right for), timeout, remember,
--          utterance timeout, calls of one utterance, entries kept singly, mode (-1 replay, 0 hold, 1 check,
--          2 charge, 3 force, 4 enter), number of scopes, the settings' number, most rows in the stream (0: there is none),
--          the instant after which the history is believed to have under five runs, then the amount for each rule;
--          packed doubles, times in ms
-- ARGV[2]  the rules, in the order in which refusals are reported
-- ARGV[3]  zero-ended strings: content, note, scopes (narrowest first), account keys, id, utterance,
--          what goes into the stream beside the note when this is a charge, a journal and a number when it is a replay;
--          the history that is to be read along, or empty
--
-- Returns a packed verdict byte and the time, then the id at the very end:
--   0 admitted: created, deadline, per rule what is held, per rule its window's start; for a charge, what is spent;
--     then the history's runs: at, value
--   2 duplicate: created, deadline
--   1 refused: per rule that said no: its place from 0, spent, reserved, requested, busy, resets, retry
--   3 conflict   4 ended: its state   5 clock: the time is outside from..until   6 stale: the settings are others
--   7 learn: the history has five runs or more: at, value of each

local T = {}
local given, from, until_, mode, m, revision, since
given, from, until_, T.timeout, T.remember, T.utterance_timeout, T.utterance_max, T.exact, mode, m, revision, T.outbox, since = unpack_('<ddddddddddddd', ARGV[1])
local now = time_of(given)
local shape = ARGV[2]
local n = #shape / 27
local base = 2 + m
local names = {unpack_(string.rep('s', 4 + base + n), ARGV[3])}
local id, utterance, actual, history = names[1 + base + n], names[2 + base + n], names[3 + base + n], names[4 + base + n]

local wanted = {root .. 'z', root .. 'd', root .. 'h:' .. id, root .. 'r'}
for i = 1, n do wanted[4 + i] = root .. 'a:' .. names[base + i] end
if utterance ~= '' or history ~= '' then
  wanted[5 + n] = root .. 'u:' .. utterance
  wanted[6 + n] = history ~= '' and root .. 'y:' .. history or nil
end
local found = call('MGET', unpack(wanted))
if lost(found[1]) then return 'LOST' .. (found[1] or '') end

local stored, scopes = found[2], {unpack(names, 3, base)}
local oldest = stored
if not stored or tonumber(stored) <= now then
  local _, _, sweep = endings()
  local ended
  oldest, ended = sweep(scopes, T, now)
  if ended then found = call('MGET', unpack(wanted)) end
end

local replay, enters = mode == -1, mode == 4 or id == ''
if replay and not advance(actual) then return pack('<BdB', 4, now, SETTLED) .. id end
local known = found[3] and read_hold(found[3])
local longer = replay and known and (known.state == EXPIRED or known.state == CHARGED) and PROVISIONAL or 0
if known and (known.state == OPEN or now < known.until_ + longer) then
  if known.content ~= '' and known.content ~= names[1] then return pack('<Bd', 3, now) .. id end
  if known.state ~= OPEN then return pack('<BdB', 4, now, known.state) .. id end
  return pack('<Bddd', 2, now, known.created, known.deadline) .. id
end
if not replay and tonumber(found[4] or 0) ~= revision then return pack('<Bd', 6, now) .. id end
if not replay and (now < from or now >= until_) then return pack('<Bd', 5, now) .. id end

local runs = history ~= '' and found[6 + n] or ''
if since < MAX_AMOUNT then
  local count = 0
  for at = 1, #runs, 16 do
    if unpack_('<d', runs, at) > since then count = count + 1 end
  end
  if count >= FEWEST then return pack('<Bd', 7, now) .. runs .. id end
end

local began, calls, hits = 0, 0, ''
if utterance ~= '' then
  began = now
  local cell = found[5 + n]
  if cell then
    local start, last, count = unpack_('<ddd', cell)
    if now - last > T.utterance_timeout or count >= T.utterance_max then
      began = max(now, start + 1)
    else
      began, calls, hits = start, count, string.sub(cell, 25)
    end
  end
end

local rules = {unpack_('<' .. string.rep(RULE, n), shape)}
local amounts = {unpack_('<' .. string.rep('d', n), ARGV[1], 105)}
local accounts, starts, failures = {}, {}, {}

-- What tells of a rule that says no, made where one does.
local function refusals()
  -- The first holds of a scope and their deadlines.
  local function first_of(scope)
    local index = scope == 0 and '' or (scope == 1 and scopes[m - 1] or scopes[1])
    return call('ZRANGE', root .. 'o:' .. index, 0, SWEEP_LIMIT - 1, 'WITHSCORES')
  end

  -- What the holds in a rolling account will be in it, if each is charged what it holds: instant, amount. Of those that
  -- are not among the first of their scope, it is as if they had been taken now.
  local function holds_in(scope, key, held, length)
    local first, found = first_of(scope), {}
    for f = 1, #first, 2 do
      local raw = call('GET', root .. 'h:' .. first[f])
      if raw and string.find(raw, '\0' .. key .. '\0', 1, true) then
        local h = read_hold(raw)
        for i = 1, h.n do
          if h.names[2 + h.m + i] == key then
            found[#found + 1] = {max(h.created, h.deadline - length), h.held[i]}
            held = held - h.held[i]
            break
          end
        end
      end
    end
    if held > 0 then found[#found + 1] = {now, held} end
    return found
  end

  -- The earliest deadline of a hold in an account, looked for among the first of its scope.
  local function earliest(scope, key)
    local first = first_of(scope)
    for f = 1, #first, 2 do
      local raw = call('GET', root .. 'h:' .. first[f])
      if raw and string.find(raw, '\0' .. key .. '\0', 1, true) then return max(tonumber(first[f + 1]), now) end
    end
    return #first > 0 and max(tonumber(first[2]), now) or now
  end

  local function failure(i, r, spent, held, amount)
    local kind, scope, limit, ends, length = rules[r + 2], rules[r + 3], rules[r + 4], rules[r + 5], rules[r + 6]
    local busy, resets, retry = spent + amount <= limit, 0, 0
    if kind == CALENDAR then resets = ends elseif kind == FIXED then resets = starts[i] + length end
    if amount <= limit then
      if busy then
        retry = earliest(scope, names[base + i])
        if resets > 0 then retry = min(resets, retry) end
      elseif kind == ROLLING then
        local holds = held > 0 and holds_in(scope, names[base + i], held, length) or nil
        retry = frees_at(names[base + i], accounts[i], spent + held + amount - limit, length, holds)
      else
        retry = resets
      end
    end
    if kind == ROLLING then resets = retry end
    return pack('<BdddBdd', i - 1, spent, held, amount, busy and 1 or 0, resets, retry)
  end

  return failure
end

local failure
for i = 1, n do
  local r = 6 * i - 6
  local kind, raw, spent, held, start = rules[r + 2], found[4 + i], 0, 0, 0
  if hits ~= '' and rules[r + 1] == UTTERANCES and string.find(hits, string.match(names[base + i], '^[^:]*') .. ' ', 1, true) then
    amounts[i] = 0
  end
  if kind == ROLLING then
    local log = read_log(raw, now - 1)
    if raw then roll(wanted[4 + i], names[base + i], log, rules[r + 6], now) end
    accounts[i], spent, held = log, log[2], log[1]
  else
    if raw then spent, held, start = unpack_('<ddd', raw) end
    if kind == ANSWER then
      if start ~= began or not raw then spent, held, start, raw = 0, 0, began, nil end
    elseif kind == FIXED and (not raw or now >= start + rules[r + 6]) then
      spent, held, start, raw = 0, 0, now, nil
    end
    accounts[i] = {spent, held, raw and (kind == CALENDAR or kind == FIXED)}
  end
  starts[i] = start
  local amount = amounts[i]
  if amount > 0 and spent + held + amount > rules[r + 4] then
    failure = failure or refusals()
    failures[#failures + 1] = failure(i, r, spent, held, amount)
  end
end

if failure and mode ~= 3 and not replay then return pack('<Bd', 1, now) .. table.concat(failures) .. id end
if mode == 1 then return pack('<Bddd', 0, now, 0, 0) .. id end
if given < 0 then renew(now) end

for i = 1, n do
  local r = 6 * i - 6
  local meter, kind, account = rules[r + 1], rules[r + 2], accounts[i]
  if mode >= 2 and meter == IN_FLIGHT then amounts[i] = 0 end
  local name, amount = wanted[4 + i], amounts[i]
  local ttl = ttl_of(kind, rules[r + 5], rules[r + 6], starts[i], T, now)
  if ttl > 0 and names[base + i] ~= '' and (amount > 0 or kind == FIXED or kind == ANSWER) then
    local kept = mode >= 2 or meter == CALLS or meter == UTTERANCES
    if kind == ROLLING then
      if kept then
        log_amount(name, names[base + i], account, rules[r + 6], now, amount, T, now)
      else
        account[1] = min(account[1] + amount, MAX_AMOUNT)
        call('SET', name, log_text(account), 'PX', ttl)
      end
    else
      local at = kept and 1 or 2
      account[at] = min(account[at] + amount, MAX_AMOUNT)
      local text = pack('<ddd', account[1], account[2], starts[i])
      if account[3] then call('SET', name, text, 'KEEPTTL') else call('SET', name, text, 'PX', ttl) end
    end
  end
end

if utterance ~= '' then
  for i = 1, n do
    if rules[6 * i - 5] == UTTERANCES then
      local place = string.match(names[base + i], '^[^:]*') .. ' '
      if not string.find(hits, place, 1, true) then hits = hits .. place end
    end
  end
  call('SET', wanted[5 + n], pack('<ddd', began, now, enters and calls or calls + 1) .. hits, 'PX', T.utterance_timeout + T.timeout)
end

local numbers = doubles(amounts, n) .. doubles(starts, n)
if enters then return pack('<Bddd', 0, now, now, now) .. numbers .. runs .. id end
local deadline, spent = now + T.timeout, ''
local h = {state = OPEN, created = now, deadline = deadline, timeout = T.timeout, cost = -1, tokens = -1, until_ = 0, n = n, m = m}
if mode >= 2 then
  local now_spent = {}
  for i = 1, n do now_spent[i] = accounts[i][rules[6 * i - 4] == ROLLING and 2 or 1] end
  spent = doubles(now_spent, n)
  if T.outbox > 0 and for_ledger(names[2]) then post('settled', id, '', now, names[2], actual, T.outbox) end
  h.state, h.until_, h.n, h.m = SETTLED, now + T.remember, 0, 0
  write_hold(id, h, T.remember + STEP, names[1] .. '\0\0')
else
  enter(id, deadline, T.timeout, m, names, stored, oldest)
  local texts = string.sub(ARGV[3], 1, #ARGV[3] - #id - #utterance - #actual - #history - 4)
  write_hold(id, h, T.timeout + UNSWEPT, shape .. numbers .. texts)
end
return pack('<Bddd', 0, now, now, deadline) .. numbers .. spent .. runs .. id
