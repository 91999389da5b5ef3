-- A text game in which things happen by themselves. Nothing in it knows of saving: the program that
-- runs it stores the whole virtual machine, suspended wherever it stands.
--
-- It is called with a seed, yields its answer to each command, and returns its last one. Where the
-- order of things matters they are in lists: the order of pairs() is another one in each machine.

local seed = ...
math.randomseed(seed)

local GULL_IS_HUNGRY_ONE_TURN_IN = 4
local HIGH_TIDE = 4
local TURNS_UNTIL_NIGHT = 40

-- --- places ---

local Place = {}
Place.__index = Place

local places = {}

local function place(name, text)
  local made = setmetatable({name = name, text = text, exits = {}, things = {}}, Place)
  places[#places + 1] = made
  places[name] = made
  return made
end

function Place:remove(thing)
  for i, here in ipairs(self.things) do
    if here == thing then return table.remove(self.things, i) end
  end
end

function Place:has(thing)
  for _, here in ipairs(self.things) do
    if here == thing then return true end
  end
  return false
end

-- A way there and back; `may_pass` says nothing, or why not.
local function connect(from, direction, to, back, may_pass)
  from.exits[#from.exits + 1] = {direction = direction, to = to, may_pass = may_pass}
  to.exits[#to.exits + 1] = {direction = back, to = from, may_pass = may_pass}
end

local quay = place("quay", "Wet stones, and a boat that nobody wants")
local street = place("street", "A steep street between shuttered houses")
local tavern = place("tavern", "The only light in town")
local rocks = place("rocks", "Black rocks below the lighthouse")
local tower = place("tower", "A winding stair, and a great cold lamp on top")

-- --- things that remember: closures ---

-- A door that only its own functions know to be locked.
local function make_door(key)
  local locked = true
  local tries = 0
  return {
    may_pass = function()
      if locked then
        tries = tries + 1
        return "The door is locked." .. (tries > 2 and " It was so before, too." or "")
      end
    end,
    unlock = function(thing)
      if thing ~= key then return "That does not fit." end
      locked = false
      return "The lock gives way."
    end,
    state = function() return (locked and "locked" or "open") .. "/" .. tries end,
  }
end

local function make_lamp()
  local oil = 0
  local lit = false
  local lamp = {}
  function lamp.fill(cans)
    oil = oil + 3 * cans
    return string.format("There is oil for %d turns now.", oil)
  end
  function lamp.light()
    if oil == 0 then return "It is dry." end
    lit = true
    return "The great lamp is burning."
  end
  function lamp.pass_time()
    if not lit then return nil end
    oil = oil - 1
    if oil > 0 then return nil end
    lit = false
    return "The lamp goes out."
  end
  function lamp.is_lit() return lit end
  function lamp.state() return (lit and "lit" or "dark") .. "/" .. oil end
  return lamp
end

local door = make_door("key")
local lamp = make_lamp()

quay.things = {"rope", "coin"}
rocks.things = {"shell"}
tavern.things = {"can"}

-- --- whoever goes about alone: coroutines, each in the middle of its own loop ---

local tide = 0
local happenings = {}

local function happen(where, text)
  happenings[#happenings + 1] = {where = where, text = text}
end

connect(quay, "north", street, "south")
connect(street, "east", tavern, "west")
connect(quay, "east", rocks, "west", function()
  if tide >= HIGH_TIDE then return "The sea stands over the path." end
end)
connect(rocks, "north", tower, "south", door.may_pass)

local keeper = {at = tavern, has = {"key"}, drinks = 0}

local actors = {
  {
    name = "tide",
    life = coroutine.create(function()
      while true do
        for level = 1, 6 do
          tide = level
          coroutine.yield()
        end
        for level = 5, 0, -1 do
          tide = level
          coroutine.yield()
        end
      end
    end),
  },
  {
    name = "keeper",
    life = coroutine.create(function()
      local round = {tavern, street, quay, street}
      for lap = 1, math.huge do
        for _, stop in ipairs(round) do
          keeper.at = stop
          happen(stop, "The keeper of the lighthouse comes along, on his round " .. lap .. ".")
          repeat coroutine.yield() until stop ~= tavern or math.random(3) > 1
        end
      end
    end),
  },
  {
    name = "gull",
    life = coroutine.create(function()
      local nest = {}
      while true do
        local where = places[math.random(#places)]
        if math.random(GULL_IS_HUNGRY_ONE_TURN_IN) == 1 and #where.things > 0 then
          local thing = where.things[math.random(#where.things)]
          where:remove(thing)
          nest[#nest + 1] = thing
          happen(where, "A gull makes off with the " .. thing .. ".")
        elseif #nest > 1 then
          local dropped = table.remove(nest, 1)
          rocks.things[#rocks.things + 1] = dropped
          happen(rocks, "A " .. dropped .. " falls from the sky.")
        end
        coroutine.yield()
      end
    end),
  },
}

-- --- the player ---

local player = {at = quay, has = {}, turns = 0, score = 0}
local over = false

local function carries(thing)
  for i, mine in ipairs(player.has) do
    if mine == thing then return i end
  end
end

local function look()
  local here = player.at
  local words = {here.text .. "."}
  for _, thing in ipairs(here.things) do words[#words + 1] = "There is a " .. thing .. "." end
  if keeper.at == here then words[#words + 1] = "The keeper is here." end
  local ways = {}
  for i, exit in ipairs(here.exits) do ways[i] = exit.direction end
  words[#words + 1] = "You can go " .. table.concat(ways, " or ") .. "."
  return table.concat(words, " ")
end

local verbs = {look = look}

function verbs.go(direction)
  for _, exit in ipairs(player.at.exits) do
    if exit.direction == direction then
      local reason = exit.may_pass and exit.may_pass()
      if reason then return reason end
      player.at = exit.to
      return look()
    end
  end
  return "There is no way " .. direction .. "."
end

function verbs.take(thing)
  if not player.at:has(thing) then return "There is no " .. thing .. " here." end
  player.at:remove(thing)
  player.has[#player.has + 1] = thing
  player.score = player.score + 1
  return "You have the " .. thing .. "."
end

function verbs.drop(thing)
  local i = carries(thing)
  if not i then return "You have no " .. thing .. "." end
  table.remove(player.has, i)
  player.at.things[#player.at.things + 1] = thing
  return "You put it down."
end

function verbs.give(thing)
  local i = carries(thing)
  if not i then return "You have no " .. thing .. "." end
  if keeper.at ~= player.at then return "There is nobody to give it to." end
  table.remove(player.has, i)
  keeper.drinks = keeper.drinks + 1
  if thing ~= "coin" or #keeper.has == 0 then return "He nods and says nothing." end
  player.has[#player.has + 1] = table.remove(keeper.has)
  player.score = player.score + 5
  return "He looks at the coin, then at the tavern, and hands you a key."
end

function verbs.use(thing)
  local i = carries(thing)
  if not i then return "You have no " .. thing .. "." end
  if thing == "key" and player.at == rocks then return door.unlock(thing) end
  if thing == "can" and player.at == tower then
    table.remove(player.has, i)
    return lamp.fill(1) .. " " .. lamp.light()
  end
  return "Nothing happens."
end

function verbs.wait() return "Time passes." end

function verbs.inventory()
  if #player.has == 0 then return "You have nothing." end
  return "You have: " .. table.concat(player.has, ", ") .. "."
end

local function perform(command)
  local verb, object = command:match("^%s*(%a+)%s*(%a*)%s*$")
  if not verb or not verbs[verb] then return "I do not understand '" .. command .. "'." end
  return verbs[verb](object)
end

local function let_time_pass()
  player.turns = player.turns + 1
  happenings = {}
  for _, actor in ipairs(actors) do assert(coroutine.resume(actor.life)) end
  local seen = {}
  for _, event in ipairs(happenings) do
    if event.where == player.at then seen[#seen + 1] = event.text end
  end
  seen[#seen + 1] = lamp.pass_time()
  if lamp.is_lit() and player.turns >= 12 then
    player.score = player.score + 20
    over = "A ship sees the light and turns. "
  elseif player.turns >= TURNS_UNTIL_NIGHT then
    over = "Night falls, and a ship is lost. "
  end
  return table.concat(seen, " ")
end

-- For the program that runs the game: the world in words, so that two worlds can be compared.
function state()
  local words = {}
  for _, one in ipairs(places) do
    words[#words + 1] = one.name .. ": " .. table.concat(one.things, ",")
  end
  words[#words + 1] = "keeper at " .. keeper.at.name .. " with " .. table.concat(keeper.has, ",")
  words[#words + 1] = string.format("tide %d, door %s, lamp %s", tide, door.state(), lamp.state())
  words[#words + 1] = string.format("player at %s with %s, turn %d, score %d", player.at.name,
                                    table.concat(player.has, ","), player.turns, player.score)
  return table.concat(words, "; ")
end

local answer = look()
while not over do
  answer = perform(coroutine.yield(answer))
  local seen = let_time_pass()
  if seen ~= "" then answer = answer .. "\n" .. seen end
end
return string.format("%s\n%sYour score is %d.", answer, over, player.score)
