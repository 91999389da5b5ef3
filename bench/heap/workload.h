#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace pagetide::bench {

// What the worker can run. Threads: at most two at a time, four in thread_storm.
//
//   small_churn        a random one of 50 000 blocks of 16 to 512 bytes, mostly small, is replaced
//   two_churns         the same by two threads, each with blocks of its own
//   pareto             small_churn with 20 000 blocks of Pareto sizes, 16 bytes to 64 KiB
//   large              the same with 32 blocks of 64 KiB to 1 MiB; every page of a block is written
//   server             threads replace random blocks (16 to 1024 bytes) of tables that the next
//                      threads take over, so that many frees come from another thread (as larson)
//   producer_consumer  every block (32 to 288 bytes) is freed by the other one of two threads
//   thread_storm       short-lived threads; each frees what an earlier one left, and leaves half
//   false_sharing      two threads write to blocks of 16 bytes that one thread allocated, and to
//                      those that they allocate themselves (as cache-scratch and cache-thrash)
//   growth             buffers grow by realloc, in turn: to 16 KiB, and to 4 MiB
//   containers         map, unordered_map, list, deque, and strings in a vector are built, changed,
//                      and destroyed
//   parsing            text in the syntax of Debian's package index becomes records of strings
inline constexpr std::array<std::string_view, 11> kWorkloads = {
    "small_churn",  "two_churns",    "pareto", "large",      "server", "producer_consumer",
    "thread_storm", "false_sharing", "growth", "containers", "parsing"};

// Not of this kind: it counts pages (dirty_pages.h).
inline constexpr std::string_view kDirtyPages = "dirty_pages";

// How much of the amounts above, in percent.
struct Scale {
  double percent = 100;

  std::size_t of(std::size_t amount) const {
    const auto scaled = static_cast<std::size_t>(static_cast<double>(amount) * percent / 100);
    return std::max<std::size_t>(scaled, 1);
  }
};

// Has everything ready when it was made, the blocks that live throughout included. Verifies and
// frees its blocks at its end. Not thread-safe: it brings its own threads.
class Workload {
 public:
  Workload() = default;
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;
  virtual ~Workload() = default;

  // One portion of the work, which can follow on another. Returns its operations: blocks that
  // were allocated or grew, insertions into containers, records that were parsed.
  virtual std::uint64_t run() = 0;
};

// nullptr: there is none of that name.
std::unique_ptr<Workload> make_workload(std::string_view name, Scale scale);

// What make_workload() chooses from, a file each.
std::unique_ptr<Workload> make_small_churn(Scale scale);
std::unique_ptr<Workload> make_two_churns(Scale scale);
std::unique_ptr<Workload> make_pareto(Scale scale);
std::unique_ptr<Workload> make_large(Scale scale);
std::unique_ptr<Workload> make_server(Scale scale);
std::unique_ptr<Workload> make_producer_consumer(Scale scale);
std::unique_ptr<Workload> make_thread_storm(Scale scale);
std::unique_ptr<Workload> make_false_sharing(Scale scale);
std::unique_ptr<Workload> make_growth(Scale scale);
std::unique_ptr<Workload> make_containers(Scale scale);
std::unique_ptr<Workload> make_parsing(Scale scale);

}  // namespace pagetide::bench
