// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The scripts' text. KEYS are those of one model in a fixed order: record, claim, servers, versions, models, born.
/// Everything that is stored is checked before anything is written, so that a script that fails has changed nothing.

namespace freshet::redis {

/// Numbers are compared by halves, each of which a double holds exactly.
inline constexpr const char* kLuaCommon = R"(
local record, claim, servers, versions, models, born = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local zero = '00000000000000000000'
local function number(field)
  local v = redis.call('HGET', record, field)
  if not v then return zero end
  if #v ~= 20 or string.find(v, '%D') then error('CORRUPT ' .. record .. ' ' .. field) end
  return v
end
local function flag(field)
  local v = redis.call('HGET', record, field) or '0'
  if v ~= '0' and v ~= '1' then error('CORRUPT ' .. record .. ' ' .. field) end
  return v
end
local function later(a, b)
  local x, y = tonumber(string.sub(a, 1, 10)), tonumber(string.sub(b, 1, 10))
  if x ~= y then return x > y end
  return tonumber(string.sub(a, 11)) > tonumber(string.sub(b, 11))
end
local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
local function quarantine(lease)
  if redis.call('HEXISTS', record, 'fence') == 1 then return 0 end
  local time, since = now(), tonumber(redis.call('GET', born) or '')
  if not since or since > time then
    redis.call('SET', born, string.format('%d', time))
    since = time
  end
  return lease - (time - since)
end
local function state()
  return number('number'), number('incarnation'), number('epoch'), number('version'), flag('hold'), number('fence')
end
)";

/// ARGV: model, owner, who, lease.
inline constexpr const char* kLuaTake = R"(
local n, i, e, v, h, fence = state()
local held = redis.call('HGET', claim, 'owner')
if held and held ~= ARGV[2] then return {'held', redis.call('HGET', claim, 'who') or ''} end
local wait = held and 0 or quarantine(tonumber(ARGV[4]))
if wait > 0 then return {'young', wait} end
if not held then fence = string.format('%020.0f', tonumber(fence) + 1) end
redis.call('HSET', record, 'fence', fence)
redis.call('DEL', claim)
redis.call('HSET', claim, 'owner', ARGV[2], 'who', ARGV[3], 'fence', fence, 'entry', '')
redis.call('PEXPIRE', claim, ARGV[4])
redis.call('SADD', models, ARGV[1])
return {'taken', n, i, e, v, h, fence}
)";

/// ARGV: model, owner, who, lease, fence, entry, number, incarnation, epoch, version, hold, channel, stale.
inline constexpr const char* kLuaKeep = R"(
local n, i, e, v, h, fence = state()
local held = redis.call('HGET', claim, 'owner')
if held and held ~= ARGV[2] then return {'lost', redis.call('HGET', claim, 'who') or ''} end
if not held and later(fence, ARGV[5]) then return {'lost', ''} end
local wait = (held or ARGV[13] ~= '1') and 0 or quarantine(tonumber(ARGV[4]))
if wait > 0 then return {'young', wait} end
if later(ARGV[7], n) then n = ARGV[7] end
if later(ARGV[8], i) then i = ARGV[8] end
local forward = later(ARGV[9], e) or (ARGV[9] == e and later(ARGV[10], v))
if forward then e, v, h = ARGV[9], ARGV[10], ARGV[11] end
local said = redis.call('HGET', claim, 'entry')
redis.call('HSET', record, 'number', n, 'incarnation', i, 'epoch', e, 'version', v, 'hold', h, 'fence', ARGV[5])
redis.call('HSET', claim, 'owner', ARGV[2], 'who', ARGV[3], 'fence', ARGV[5], 'entry', ARGV[6])
redis.call('PEXPIRE', claim, ARGV[4])
redis.call('SADD', models, ARGV[1])
if redis.call('EXISTS', born) == 0 then redis.call('SET', born, string.format('%d', now())) end
if forward or said ~= ARGV[6] then redis.call('PUBLISH', ARGV[12], 'look') end
return {held and 'kept' or 'again', n, i, e, v, h, ARGV[5]}
)";

/// ARGV: owner, reserved, given, channel.
inline constexpr const char* kLuaRelease = R"(
if redis.call('HGET', claim, 'owner') ~= ARGV[1] then return {'lost'} end
if redis.call('HGET', record, 'number') == ARGV[2] then redis.call('HSET', record, 'number', ARGV[3]) end
redis.call('DEL', claim)
redis.call('PUBLISH', ARGV[4], 'look')
return {'released'}
)";

/// ARGV: owner, expected epoch, version, hold, desired epoch, version, hold, channel.
inline constexpr const char* kLuaSwap = R"(
local n, i, e, v, h, fence = state()
if ARGV[1] ~= '' then
  local held = redis.call('HGET', claim, 'owner')
  if held ~= ARGV[1] then return {'lost', held and redis.call('HGET', claim, 'who') or ''} end
end
if e ~= ARGV[2] or v ~= ARGV[3] or h ~= ARGV[4] then return {'differs', e, v, h} end
redis.call('HSET', record, 'epoch', ARGV[5], 'version', ARGV[6], 'hold', ARGV[7])
redis.call('PUBLISH', ARGV[8], 'look')
return {'swapped'}
)";

/// Answers: entry, epoch, version, hold, then an address and its version for each server.
inline constexpr const char* kLuaLook = R"(
local n, i, e, v, h = state()
local answer = {redis.call('HGET', claim, 'entry') or '', e, v, h}
for _, address in ipairs(redis.call('ZRANGEBYSCORE', servers, '(' .. string.format('%d', now()), '+inf', 'LIMIT', 0, 1024)) do
  answer[#answer + 1] = address
  answer[#answer + 1] = redis.call('HGET', versions, address) or zero
end
return answer
)";

/// KEYS: the set of models. Answers: a name and its entry for each that has one.
inline constexpr const char* kLuaList = R"(
local answer = {}
for _, model in ipairs(redis.call('SRANDMEMBER', KEYS[1], 4096)) do
  local entry = redis.pcall('HGET', 'freshet:' .. model .. ':claim', 'entry')
  if type(entry) == 'string' and entry ~= '' then
    answer[#answer + 1] = model
    answer[#answer + 1] = entry
  end
end
return answer
)";

/// ARGV: address, version, time to live, channel.
inline constexpr const char* kLuaServe = R"(
local time = now()
for _, address in ipairs(redis.call('ZRANGEBYSCORE', servers, '-inf', string.format('%d', time))) do
  redis.call('ZREM', servers, address)
  redis.call('HDEL', versions, address)
end
local known = redis.call('ZSCORE', servers, ARGV[1])
if not known and redis.call('ZCARD', servers) >= 1024 then error('FULL ' .. servers) end
local changed = not known or redis.call('HGET', versions, ARGV[1]) ~= ARGV[2]
redis.call('ZADD', servers, string.format('%d', time + tonumber(ARGV[3])), ARGV[1])
redis.call('HSET', versions, ARGV[1], ARGV[2])
redis.call('PEXPIRE', servers, 3700000)
redis.call('PEXPIRE', versions, 3700000)
if changed then redis.call('PUBLISH', ARGV[4], 'look') end
return {'serving'}
)";

/// ARGV: address, channel.
inline constexpr const char* kLuaStopServing = R"(
redis.call('HDEL', versions, ARGV[1])
if redis.call('ZREM', servers, ARGV[1]) == 1 then redis.call('PUBLISH', ARGV[2], 'look') end
return {'stopped'}
)";

}  // namespace freshet::redis
