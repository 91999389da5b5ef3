// Lua in an arena, as the users of the example run it: played, killed and gone on with in another
// process, rolled back, and with what is wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "pagetide/pagetide.hpp"
#include "tests/support/must.h"
#include "tests/support/run_program.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

const std::string kSource = PAGETIDE_SOURCE_DIR "/examples/lua_vm/";
const std::string kGame = kSource + "lighthouse.lua";
const std::string kFirstWay = kSource + "first_way.txt";
const std::string kOtherWay = kSource + "other_way.txt";
constexpr int kTurnsOfFirstWay = 14;

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class LuaVmTest : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(directory_.file(name)) << content;
    return directory_.file(name);
  }
  std::string store() const { return directory_.file("store"); }
  // With the game of the example unless `more` names another one.
  RunResult run(const std::vector<std::string>& more, const RunOptions& options = {}) const {
    std::vector<std::string> command = {LUA_VM_PATH, "--store", store()};
    if (std::find(more.begin(), more.end(), "--game") == more.end()) {
      command.insert(command.end(), {"--game", kGame});
    }
    command.insert(command.end(), more.begin(), more.end());
    return run_program(command, options);
  }
  // The document of a run that went well.
  Json run_json(std::vector<std::string> more, const RunOptions& options = {}) const {
    more.emplace_back("--json");
    const RunResult result = run(more, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out, nullptr, false);
  }
  void remove_store() const { std::filesystem::remove_all(store()); }

  TemporaryDirectory directory_;
};

TEST_F(LuaVmTest, plays_a_game_to_its_end) {
  const RunResult result = run({"--commands", kFirstWay});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, StartsWith("Wet stones, "));
  EXPECT_THAT(result.out, HasSubstr("\n> use key\nThe lock gives way.\n"));
  EXPECT_THAT(result.out, HasSubstr("A ship sees the light and turns. Your score is 27.\n"));
  EXPECT_THAT(result.out, HasSubstr("[the game is over after 14 turns"));
}

TEST_F(LuaVmTest, killed_after_any_turn_it_goes_on_and_ends_as_an_uninterrupted_game) {
  const Json whole = run_json({"--commands", kFirstWay});
  ASSERT_EQ(whole["end"]["turn"], kTurnsOfFirstWay);
  for (int turn = 1; turn <= kTurnsOfFirstWay; ++turn) {
    SCOPED_TRACE(turn);
    remove_store();
    const RunResult killed = run(
        {"--commands", kFirstWay, "--snapshot-every", "3", "--kill-after", std::to_string(turn)});
    ASSERT_EQ(killed.signal, SIGKILL) << killed.err;
    const Json rest = run_json({"--commands", kFirstWay});
    EXPECT_EQ(rest["reopened"]["at"]["turn"], (turn - 1) / 3 * 3);
    EXPECT_EQ(rest["end"], whole["end"]);
  }
}

// Twenty coroutines, each somewhere in its own loop, and no end.
constexpr const char* kWalkers = R"lua(
  math.randomseed((...))
  local walkers = {}
  for i = 1, 20 do
    walkers[i] = coroutine.wrap(function()
      local sum = 0
      while true do
        for step = 1, i do
          sum = (sum + step * math.random(1000)) % 1000003
          coroutine.yield(sum)
        end
      end
    end)
  end
  local total = 0
  function state() return tostring(total) end
  local answer = "begin"
  while true do
    local command = coroutine.yield(answer)
    for _, walk in ipairs(walkers) do total = (total * 31 + walk()) % 1000000007 end
    answer = command .. " " .. total
  end
)lua";

TEST_F(LuaVmTest, killed_again_and_again_it_ends_as_an_uninterrupted_game) {
  std::string commands;
  for (int i = 0; i < 1500; ++i) commands += "command " + std::to_string(i) + "\n";
  const std::vector<std::string> options = {"--game",           file("walkers.lua", kWalkers),
                                            "--commands",       file("commands", commands),
                                            "--snapshot-every", "10"};
  const auto started = std::chrono::steady_clock::now();
  const Json whole = run_json(options);
  const auto whole_run = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - started);

  std::mt19937_64 random(test_seed());
  for (std::size_t i = 0; i < scaled(3); ++i) {
    remove_store();
    int kills = 0;
    for (bool ended = false; !ended;) {
      const std::chrono::microseconds wait(random() %
                                           (static_cast<std::uint64_t>(whole_run.count()) / 2));
      const RunResult result = run(options, {.on_start = [wait](pid_t pid) {
                                     std::this_thread::sleep_for(wait);
                                     ::kill(pid, SIGKILL);  // nobody has waited for it yet
                                   }});
      ended = result.signal == 0;
      if (!ended) ++kills;
      ASSERT_TRUE(result.exit_code == 0 || result.signal == SIGKILL) << result.err;
      // Long enough for the kills to come all over the game, but not for ever.
      if (kills == 25) break;
    }
    EXPECT_EQ(run_json(options)["end"], whole["end"]);
    std::printf("%d kills\n", kills);
  }
}

TEST_F(LuaVmTest, the_next_process_needs_no_script) {
  const std::string game = file("game.lua", text_of(kGame));
  ASSERT_EQ(run({"--game", game, "--commands", kFirstWay, "--kill-after", "6"}).signal, SIGKILL);
  std::filesystem::remove(game);
  const RunResult result = run({"--game", game, "--commands", kFirstWay});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("A ship sees the light"));
}

TEST_F(LuaVmTest, rolled_back_it_goes_another_way_and_the_first_one_again) {
  const Json ways = run_json({"--commands", kFirstWay, "--back-to", "3", "--other", kOtherWay});
  EXPECT_EQ(ways["ways"]["first"], ways["end"]);
  EXPECT_EQ(ways["ways"]["again"], ways["end"]);
  EXPECT_NE(ways["ways"]["other"]["world"], ways["end"]["world"]);
  ASSERT_EQ(ways["rollbacks"].size(), 2U);
  const auto at_turn_3 = std::find_if(ways["snapshots"].begin(), ways["snapshots"].end(),
                                      [](const Json& taken) { return taken["at"]["turn"] == 3; });
  ASSERT_NE(at_turn_3, ways["snapshots"].end());
  for (const Json& rollback : ways["rollbacks"]) EXPECT_EQ(rollback["at"], (*at_turn_3)["at"]);
}

TEST_F(LuaVmTest, goes_back_to_what_another_process_has_stored) {
  std::istringstream lines(text_of(kFirstWay));
  std::string five;
  std::string line;
  for (int i = 0; i < 5 && std::getline(lines, line); ++i) five += line + "\n";
  const Json before = run_json({"--commands", file("five", five)});
  ASSERT_EQ(before["end"]["turn"], 5);
  const Json ways = run_json({"--commands", kFirstWay, "--back-to", "5", "--other", kOtherWay});
  EXPECT_EQ(ways["rollbacks"][0]["at"], before["end"]);
  EXPECT_EQ(ways["ways"]["again"], ways["ways"]["first"]);
}

TEST_F(LuaVmTest, the_order_of_pairs_stays_in_the_next_process) {
  const std::string game = file("pairs.lua", R"lua(
    local set = {}
    for i = 1, 50 do set["key" .. i] = true end
    function state()
      local keys = {}
      for key in pairs(set) do keys[#keys + 1] = key end
      return table.concat(keys, " ")
    end
    while true do coroutine.yield("") end
  )lua");
  const Json first = run_json({"--game", game});
  const Json second = run_json({"--game", game});
  EXPECT_EQ(second["reopened"]["snapshot"], 1);
  EXPECT_EQ(second["end"]["world"], first["end"]["world"]);
}

// What they hold lies outside the heap.
TEST_F(LuaVmTest, a_script_has_no_streams_and_no_libraries) {
  const std::string game = file("globals.lua", R"lua(
    function state()
      local found = {}
      for _, name in ipairs {"io", "os", "package", "require", "debug", "dofile", "loadfile"} do
        if _G[name] then found[#found + 1] = name end
      end
      return table.concat(found, " ")
    end
    return ""
  )lua");
  EXPECT_EQ(run_json({"--game", game})["end"]["world"], "");
}

TEST_F(LuaVmTest, works_where_pages_are_compared) {
  const RunOptions compare = {.environment = {{"PAGETIDE_DISABLE", "userfaultfd"}}};
  const Json whole =
      run_json({"--commands", kFirstWay, "--back-to", "3", "--other", kOtherWay}, compare);
  remove_store();
  ASSERT_EQ(run({"--commands", kFirstWay, "--kill-after", "9"}, compare).signal, SIGKILL);
  EXPECT_EQ(run_json({"--commands", kFirstWay}, compare)["end"], whole["end"]);
}

TEST_F(LuaVmTest, leaves_a_sound_store) {
  ASSERT_EQ(run({"--commands", kFirstWay, "--kill-after", "9"}).signal, SIGKILL);
  Store opened = must(Store::open(store(), {StoreMode::read}));
  EXPECT_TRUE(must(verify(opened)).sound());
  EXPECT_TRUE(must(opened.info(must(opened.latest()))).holds_code_addresses);
}

// The program with another build id, as if it had been linked from other sources.
std::string other_build(const std::string& path) {
  const std::string program = text_of(LUA_VM_PATH);
  // A note: length of the name, of the id, type 3, name.
  constexpr std::string_view kHead("\4\0\0\0\24\0\0\0\3\0\0\0GNU\0", 16);
  std::string changed = program;
  const std::size_t note = changed.find(kHead);
  if (note == std::string::npos) return {};
  changed[note + kHead.size()] ^= 1;
  std::ofstream(path) << changed;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

TEST_F(LuaVmTest, another_build_refuses_to_go_on) {
  const std::string other = other_build(directory_.file("other"));
  ASSERT_NE(other, "");
  ASSERT_EQ(run_program({other, "--store", directory_.file("its own"), "--game", kGame}).exit_code,
            0);
  ASSERT_EQ(run({}).exit_code, 0);
  const RunResult refused = run_program({other, "--store", store()});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("holds code addresses"));
  EXPECT_THAT(refused.err, HasSubstr("another build"));
}

TEST_F(LuaVmTest, refuses_other_commands_than_those_that_were_played) {
  ASSERT_EQ(run({"--commands", kFirstWay, "--kill-after", "6"}).signal, SIGKILL);
  const RunResult other = run({"--commands", kOtherWay});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("are not those that were played"));
  const RunResult few = run({"--commands", file("few", "take coin\n")});
  EXPECT_EQ(few.exit_code, 1);
  EXPECT_THAT(few.err, HasSubstr("has 1 commands, but the game is at turn 5"));
}

TEST_F(LuaVmTest, refuses_the_store_of_another_program) {
  {
    Arena arena = must(Arena::create({.name = "numbers", .reserve_bytes = 1U << 20}));
    Store other = must(Store::open(store()));
    must(Snapshotter(arena, other).take());
  }
  const RunResult result = run({});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("holds the arena 'numbers' of another program"));
}

TEST_F(LuaVmTest, says_where_a_script_is_wrong) {
  const RunResult syntax = run({"--game", file("syntax.lua", "local x =\n")});
  EXPECT_EQ(syntax.exit_code, 1);
  EXPECT_THAT(syntax.err, HasSubstr("syntax.lua:2: unexpected symbol near <eof>"));
  remove_store();
  const RunResult failing = run({"--game", file("failing.lua", "local x\nx.y = 1\n")});
  EXPECT_EQ(failing.exit_code, 1);
  EXPECT_THAT(failing.err, HasSubstr("failing.lua:2: attempt to index a nil value (local 'x')"));
  EXPECT_THAT(failing.err, HasSubstr("stack traceback:"));
  remove_store();
  const RunResult silent = run({"--game", file("silent.lua", "coroutine.yield()")});
  EXPECT_EQ(silent.exit_code, 1);
  EXPECT_THAT(silent.err, HasSubstr("the script has to yield one text"));
}

TEST_F(LuaVmTest, says_that_a_script_needs_more_memory) {
  const std::string greedy = file("greedy.lua", "local t = {} while true do t[#t + 1] = {} end");
  const RunResult result = run({"--game", greedy, "--reserve", "4MiB"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("needs more memory than the arena has"));
}

TEST_F(LuaVmTest, says_which_turns_it_can_go_back_to) {
  const RunResult result =
      run({"--commands", kFirstWay, "--back-to", "20", "--other", kOtherWay, "--quiet"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("no snapshot at turn 20, but at these: 0 5 10 14."));
  EXPECT_EQ(result.out, "");
}

TEST_F(LuaVmTest, explains_itself) {
  const RunResult help = run_program({LUA_VM_PATH, "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("Exit status: 0"));
  const RunResult alone = run({"--back-to", "3"});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.err, HasSubstr("--other"));
  const RunResult unreadable = run({"--commands", "/nonexistent/commands"});
  EXPECT_EQ(unreadable.exit_code, 1);
  EXPECT_THAT(unreadable.err, HasSubstr("cannot open the commands /nonexistent/commands"));
  const RunResult no_game = run({"--game", directory_.path()});
  EXPECT_EQ(no_game.exit_code, 1);
  EXPECT_THAT(no_game.err, HasSubstr("Name a Lua script with --game"));
}

}  // namespace
}  // namespace pagetide
