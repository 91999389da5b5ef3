#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "examples/lua_vm/options.h"
#include "pagetide/pagetide.hpp"

namespace lua_vm {

// A game at one moment.
struct Moment {
  std::uint64_t turns = 0;
  std::uint64_t world_hash = 0;
  std::uint64_t transcript_hash = 0;  // of all that was answered up to here
  bool is_over = false;
  std::string world;

  friend bool operator==(const Moment&, const Moment&) = default;
};

// What the program tells on standard output: the game, or one JSON document at the end. Every line
// is out before the program goes on, because it may be killed at any moment.
class Report {
 public:
  explicit Report(const Options& options);

  void reopened(const pagetide::SnapshotInfo& info, const Moment& moment);
  void answer(std::string_view answer) const;
  void turn(std::string_view command, std::string_view answer) const;
  void snapshot(const pagetide::SnapshotInfo& info, const Moment& moment);
  void killing(std::uint64_t turns) const;
  void end(const Moment& moment);
  void rolled_back(pagetide::SnapshotId to, const pagetide::RollbackStats& stats,
                   const Moment& moment);
  void ways(const Moment& first, const Moment& other, const Moment& again);
  // The document, if one is wanted.
  void print_json() const;

 private:
  void line(std::string_view text) const;

  const Options& options_;
  nlohmann::ordered_json json_;
};

}  // namespace lua_vm
