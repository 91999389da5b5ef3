// What it costs to have an arena back in memory, and to verify a store. Everything is in the
// page cache, on both sides: what is measured is the work, not the disk.
//
// `ratio` is the peer's time divided by ours: above 1 Pagetide is the faster one. The peer does
// less: it reads as many bytes into fresh anonymous memory, and checks nothing.
//   open    Store::open_arena(): reads every page, checks it against its hash, and arms it.
//           `deltas` snapshots of 1 % of the pages stand between the full one and the one opened.
//   verify  verify(): reads every page of every snapshot and checks it against its hash.

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "bench/stored_arena.h"
#include "bench/support.h"
#include "pagetide/base/syscalls.h"
#include "pagetide/base/unique_fd.h"
#include "pagetide/snapshot/verify.h"

namespace {

using namespace pagetide;
using namespace pagetide::bench;

// A store without its arena: one full snapshot of the data, and deltas.
class FilledStore {
 public:
  static Result<FilledStore> create(std::int64_t deltas) {
    auto arena = StoredArena::create(Place::temporary, bench_bytes());
    if (!arena) return propagate(arena);
    const std::size_t pages = (*arena)->data().size / page_size();
    PagePicker picker(pages);
    for (std::int64_t i = 0; i < deltas; ++i) {
      write_pages((*arena)->data(), picker.pick(pages / 100));
      if (auto id = (*arena)->snapshotter().take(); !id) return propagate(id);
    }
    (*arena)->close_arena();
    return FilledStore(std::move(*arena));
  }

  Store& store() { return arena_->store(); }
  // The segment of the full snapshot: the largest file, which holds the data once.
  std::string largest_file() const {
    std::filesystem::path largest;
    std::uintmax_t size = 0;
    for (const auto& entry : std::filesystem::directory_iterator(store_path())) {
      if (entry.file_size() <= size) continue;
      size = entry.file_size();
      largest = entry.path();
    }
    return largest.string();
  }

 private:
  explicit FilledStore(std::unique_ptr<StoredArena> arena) : arena_(std::move(arena)) {}
  const std::string& store_path() const { return arena_->store().path(); }

  std::unique_ptr<StoredArena> arena_;
};

// Kept over the repetitions of one benchmark: it takes longer to make than to open.
Result<FilledStore*> store_with(std::int64_t deltas) {
  static std::optional<FilledStore> store;
  static std::int64_t deltas_of_store = 0;
  if (store && deltas_of_store == deltas) return &*store;
  store.reset();
  auto made = FilledStore::create(deltas);
  if (!made) return propagate(made);
  store = std::move(*made);
  deltas_of_store = deltas;
  return &*store;
}

// Of bench_bytes(), as the data of the arena has.
Result<double> read_into_fresh_memory(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return system_failure("open a segment", errno);
  std::optional<Pages> memory;
  ssize_t read = -1;
  const double seconds = seconds_of([&] {
    memory.emplace(bench_bytes());
    const ByteRange range = memory->range();
    if (!range.empty()) read = sys::read_full(file.get(), range.data(), range.size, 0);
  });
  if (read == static_cast<ssize_t>(bench_bytes())) return seconds;
  return failure(ErrorCode::system_failure, "the segment could not be read in whole");
}

constexpr const char* kPeer = "read() of as many bytes, nothing checked";

void open_arena(benchmark::State& state) {
  auto filled = store_with(state.range(0));
  if (!filled) return skip(state, filled.error());
  Store& store = (*filled)->store();
  const auto open = [&]() -> Result<double> {
    auto id = store.latest();
    if (!id) return propagate(id);
    std::optional<Result<Arena>> arena;
    const double seconds = seconds_of([&] { arena.emplace(store.open_arena(*id)); });
    if (!*arena) return propagate(*arena);
    return seconds;
  };
  const std::string file = (*filled)->largest_file();
  compare(state, kPeer, {.count = 5, .unit = Unit::ms}, open,
          [&] { return read_into_fresh_memory(file); });
}

void verify_store(benchmark::State& state) {
  auto filled = store_with(0);
  if (!filled) return skip(state, filled.error());
  Store& store = (*filled)->store();
  const auto verify_all = [&]() -> Result<double> {
    std::optional<Result<VerifyReport>> report;
    const double seconds = seconds_of([&] { report.emplace(verify(store)); });
    if (!*report) return propagate(*report);
    if (!(*report)->sound()) return tl::unexpected<Error>((*report)->problems.front());
    return seconds;
  };
  const std::string file = (*filled)->largest_file();
  compare(state, kPeer, {.count = 5, .unit = Unit::ms}, verify_all,
          [&] { return read_into_fresh_memory(file); });
}

BENCHMARK(open_arena)
    ->Name("open")
    ->ArgName("deltas")
    ->Arg(20)
    ->Arg(0)
    ->Unit(benchmark::kMillisecond)
    ->Apply(series);
BENCHMARK(verify_store)->Name("verify")->Unit(benchmark::kMillisecond)->Apply(series);

}  // namespace

BENCHMARK_MAIN();
