#include "examples/lua_vm/report.h"

#include <fmt/format.h>
#include <lua.hpp>

#include <cstdio>

namespace lua_vm {

using Json = nlohmann::ordered_json;

namespace {

std::string hex(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

Json json_of(const Moment& moment) {
  return {{"turn", moment.turns},
          {"over", moment.is_over},
          {"world_hash", hex(moment.world_hash)},
          {"transcript_hash", hex(moment.transcript_hash)},
          {"world", moment.world}};
}

double milliseconds(std::uint64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

}  // namespace

Report::Report(const Options& options)
    : options_(options),
      json_({{"lua", LUA_RELEASE},
             {"store", options.store},
             {"reopened", nullptr},
             {"snapshots", Json::array()}}) {}

void Report::line(std::string_view text) const {
  if (options_.quiet || options_.json) return;
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void Report::reopened(const pagetide::SnapshotInfo& info, const Moment& moment) {
  json_["reopened"] = {{"snapshot", info.id.value}, {"at", json_of(moment)}};
  line(fmt::format("[going on from snapshot {} of {}, at turn {}, world {}]", info.id.value,
                   options_.store, moment.turns, hex(moment.world_hash)));
}

void Report::answer(std::string_view answer) const {
  line(answer);
}

void Report::turn(std::string_view command, std::string_view answer) const {
  line(fmt::format("\n> {}\n{}", command, answer));
}

void Report::snapshot(const pagetide::SnapshotInfo& info, const Moment& moment) {
  json_["snapshots"].push_back({{"id", info.id.value},
                                {"parent", info.parent.value},
                                {"at", json_of(moment)},
                                {"changed_pages", info.changed_pages},
                                {"stop_ns", info.stop_ns}});
  line(fmt::format("[snapshot {} at turn {}: {} pages, {:.2f} ms, world {}]", info.id.value,
                   moment.turns, info.changed_pages, milliseconds(info.stop_ns),
                   hex(moment.world_hash)));
}

void Report::killing(std::uint64_t turns) const {
  line(fmt::format("[killing this process with SIGKILL at turn {}]", turns));
}

void Report::end(const Moment& moment) {
  json_["end"] = json_of(moment);
  line(fmt::format("[{} after {} turns, world {}, transcript {}]",
                   moment.is_over ? "the game is over" : "no more commands", moment.turns,
                   hex(moment.world_hash), hex(moment.transcript_hash)));
}

void Report::rolled_back(pagetide::SnapshotId to, const pagetide::RollbackStats& stats,
                         const Moment& moment) {
  json_["rollbacks"].push_back(
      {{"to", to.value}, {"at", json_of(moment)}, {"restored_pages", stats.restored_pages}});
  line(fmt::format("\n[rolled back to snapshot {}, turn {}: {} pages, {:.2f} ms, world {}]",
                   to.value, moment.turns, stats.restored_pages, milliseconds(stats.stop_ns),
                   hex(moment.world_hash)));
}

void Report::ways(const Moment& first, const Moment& other, const Moment& again) {
  json_["ways"] = {{"first", json_of(first)}, {"other", json_of(other)}, {"again", json_of(again)}};
  line(
      fmt::format("\n[the first way ended at {}\n the other way ended at {}\n the first way again "
                  "ended at {}]",
                  hex(first.world_hash), hex(other.world_hash), hex(again.world_hash)));
}

void Report::print_json() const {
  if (options_.json) fmt::print("{}\n", json_.dump(2));
}

}  // namespace lua_vm
