#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/base/hash.h"
#include "pagetide/base/unique_fd.h"
#include "pagetide/tracker/any_backend.h"
#include "pagetide/tracker/backends/compare_backend.h"
#include "pagetide/tracker/tracker.h"

#include "tests/support/child_process.h"
#include "tests/support/mapping.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/skip.h"

// The one promise of a tracker, checked against a full copy of the memory: no page whose content
// changed is ever missing from a take.

namespace pagetide {
namespace {

using ::testing::HasSubstr;

// A reservation that grows from its start, as a region does, tracked by any tracker. Each of its
// consumers has a copy of the pages as they were at its last take.
class TrackedMemory {
 public:
  static constexpr std::size_t kPages = 256;

  explicit TrackedMemory(Tracker tracker, std::size_t consumers = 1)
      : mapping_(kPages, PROT_NONE),
        tracker_(std::move(tracker)),
        watch_(must(tracker_.watch(mapping_.range()))) {
    for (std::size_t i = 0; i < consumers; ++i) {
      const ConsumerId id = i == 0 ? ConsumerId{} : must(tracker_.add_consumer());
      consumers_.push_back({id, std::vector<char>(kPages * page_size(), 0)});
    }
  }

  Tracker& tracker() { return tracker_; }
  const Mapping& mapping() const { return mapping_; }
  std::size_t committed() const { return committed_; }
  std::size_t consumers() const { return consumers_.size(); }
  ByteRange pages(std::size_t first, std::size_t count) const {
    return mapping_.pages(first, count);
  }

  void grow(std::size_t count) {
    count = std::min(count, kPages - committed_);
    if (count == 0) return;
    const ByteRange more = pages(committed_, count);
    ASSERT_EQ(::mprotect(more.data(), more.size, PROT_READ | PROT_WRITE), 0);
    committed_ += count;
  }

  // A consumer takes the pages of one part; checks the answer, and tells the tracker what had not
  // changed, as one that hashes does. "" when nothing was missed.
  std::string take_and_check(PageRange part, std::size_t consumer = 0) {
    const ByteRange bytes = part.bytes_from(mapping_.range().begin);
    const ConsumerId id = consumers_.at(consumer).id;
    const auto taken = tracker_.collect(watch_, {&bytes, 1}, CollectMode::take, id);
    if (!taken) return taken.error().message();
    if (taken->poisoned) return "poisoned: " + taken->cause;
    DirtyBitmap unchanged(kPages);
    std::vector<char>& shadow = consumers_.at(consumer).shadow;
    for (std::size_t page = part.first; page < part.end(); ++page) {
      const bool written = taken->written.test(page);
      const bool zeroed = taken->zeroed.test(page);
      char* const copy = shadow.data() + page * page_size();
      const bool differs = std::memcmp(copy, mapping_.page(page), page_size()) != 0;
      if (written && zeroed) return "page " + std::to_string(page) + " is both written and zeroed";
      if (zeroed && !is_all_zero(mapping_.page(page), page_size())) {
        return "page " + std::to_string(page) + " is called zero and is not";
      }
      if (!written && !zeroed && differs) return "missed page " + std::to_string(page);
      if (written && !differs) unchanged.set(page);
      reported_ += written || zeroed ? 1U : 0U;
      changed_ += differs ? 1U : 0U;
      std::memcpy(copy, mapping_.page(page), page_size());
    }
    tracker_.report_unchanged(watch_, unchanged);
    return {};
  }
  // Every consumer takes all.
  std::string take_and_check() {
    std::string wrong;
    for (std::size_t i = 0; i < consumers_.size() && wrong.empty(); ++i) {
      wrong = take_and_check({0, committed_}, i);
    }
    return wrong;
  }

  // Pages that takes named, and those among all pages taken whose content had changed.
  std::size_t reported() const { return reported_; }
  std::size_t changed() const { return changed_; }

 private:
  struct Consumer {
    ConsumerId id;
    std::vector<char> shadow;
  };

  Mapping mapping_;
  Tracker tracker_;
  WatchId watch_;
  std::vector<Consumer> consumers_;
  std::size_t committed_ = 0;
  std::size_t reported_ = 0;
  std::size_t changed_ = 0;
};

// What the memory of a case may be used for.
struct Case {
  const char* name;
  TrackerOptions options;
  bool kernel_writes = true;          // by system calls
  bool changes_of_protection = true;  // by mprotect(2)
  std::size_t consumers = 1;

  Tracker tracker() const { return must(Tracker::create(options)); }
};
// For messages of GoogleTest.
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

// One random act on the memory, as programs and allocators do them.
class RandomActs {
 public:
  RandomActs(TrackedMemory& memory, RandomSource& random, const Case& allowed)
      : memory_(memory),
        random_(random),
        allowed_(allowed),
        entropy_(::open("/dev/urandom", O_RDONLY | O_CLOEXEC)) {}

  void act() {
    if (memory_.committed() == 0) return memory_.grow(8);
    switch (random_.below(20)) {
      case 0:
        return memory_.grow(random_.between(1, 16));
      case 1:
        return purge();
      case 2:
        return purge_and_prefill();
      case 3:
        return must(memory_.tracker().prefill(run(), policy()));
      case 4:
        return fork_a_writer();
      case 5:
        return forbid_and_allow();
      case 6:
        return read_page();
      case 7:
      case 8:
      case 9:
        return write_by_kernel();
      default:
        return write();
    }
  }
  // A store of random bytes, or of zeros: also a change.
  void write() {
    const ByteRange bytes = some_bytes();
    std::memset(bytes.data(), random_.one_in(4) ? 0 : static_cast<int>(random_.below(256)),
                bytes.size);
  }

 private:
  ByteRange run() {
    const std::size_t first = random_.below(memory_.committed());
    return memory_.pages(first,
                         random_.between(1, std::min<std::size_t>(8, memory_.committed() - first)));
  }
  ByteRange some_bytes() {
    const ByteRange pages = run();
    const std::size_t offset = random_.below(pages.size);
    const std::size_t most = random_.one_in(4) ? pages.size - offset : 100;
    return {pages.begin + offset, random_.between(1, std::min(most, pages.size - offset))};
  }
  void purge() { must(memory_.tracker().purge(run())); }
  void purge_and_prefill() {
    const ByteRange pages = run();
    must(memory_.tracker().purge(pages));
    must(memory_.tracker().prefill(pages, policy()));
  }
  Prefill policy() {
    constexpr std::array<Prefill, 4> kPolicies = {Prefill::automatic, Prefill::zero_page,
                                                  Prefill::marker, Prefill::none};
    return kPolicies.at(random_.below(kPolicies.size()));
  }
  void write_by_kernel() {
    if (!allowed_.kernel_writes) return write();
    const ByteRange bytes = some_bytes();
    ASSERT_GT(::read(entropy_.get(), bytes.data(), bytes.size), 0);
  }
  void fork_a_writer() {
    // Forks cost the most; a few are enough.
    if (!random_.one_in(4)) return;
    const ByteRange bytes = run();
    EXPECT_EQ(run_in_child([&] {
                std::memset(bytes.data(), 77, bytes.size);
                return std::string();
              }),
              "");
  }
  void forbid_and_allow() {
    if (!allowed_.changes_of_protection) return;
    const ByteRange pages = run();
    ASSERT_EQ(::mprotect(pages.data(), pages.size, PROT_NONE), 0);
    ASSERT_EQ(::mprotect(pages.data(), pages.size, PROT_READ | PROT_WRITE), 0);
  }
  void read_page() { (void)*reinterpret_cast<volatile char*>(run().data()); }

  TrackedMemory& memory_;
  RandomSource& random_;
  const Case& allowed_;
  UniqueFd entropy_;
};

// Random acts with takes in between; the first thing that was wrong, or "".
std::string check_random_use(TrackedMemory& memory, RandomSource& random, std::size_t rounds,
                             const Case& allowed = {"any", {}}) {
  RandomActs acts(memory, random, allowed);
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t i = random.below(30); i > 0; --i) acts.act();
    if (memory.committed() == 0) continue;
    PageRange part{0, memory.committed()};
    if (random.one_in(3)) {
      part.first = random.below(memory.committed());
      part.count = random.between(1, memory.committed() - part.first);
    }
    const std::size_t consumer = random.below(memory.consumers());
    if (std::string wrong = memory.take_and_check(part, consumer); !wrong.empty()) return wrong;
  }
  return memory.take_and_check();
}

// Few takes between two that arm everything, and blocks that are left unarmed at once.
constexpr HotPageOptions kHot{.enabled = true, .relearn_takes = 5};

const Case kCases[] = {
    {"automatic", {}},
    {"automatic_hot", {.hot_pages = kHot}},
    {"automatic_three_consumers", {}, true, true, 3},
    {"automatic_hot_three_consumers", {.hot_pages = kHot}, true, true, 3},
    {"uffd_sync", {BackendKind::uffd_sync}},
    {"uffd_sync_hot_two_consumers",
     {.backend = BackendKind::uffd_sync, .hot_pages = kHot},
     true,
     true,
     2},
    {"uffd_sigbus", {BackendKind::uffd_sigbus}, false},
    {"uffd_sigbus_hot_two_consumers",
     {.backend = BackendKind::uffd_sigbus, .hot_pages = kHot},
     false,
     true,
     2},
    {"soft_dirty", {BackendKind::soft_dirty}},
    {"mprotect", {BackendKind::write_protect}, false, false},
    {"mprotect_hot_two_consumers",
     {.backend = BackendKind::write_protect, .hot_pages = kHot},
     false,
     false,
     2},
    {"compare", {BackendKind::compare}},
    {"compare_three_consumers", {BackendKind::compare}, true, true, 3},
};

class OracleTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (auto tracker = Tracker::create(GetParam().options); !tracker) {
      PAGETIDE_SKIP(tracker.error().message().c_str());
    }
  }
};

INSTANTIATE_TEST_SUITE_P(every_back_end, OracleTest, testing::ValuesIn(kCases),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(OracleTest, nothing_is_missed_in_random_use) {
  RandomSource random;
  std::size_t reported = 0;
  std::size_t changed = 0;
  for (std::size_t run = 0; run < scaled(12); ++run) {
    TrackedMemory memory(GetParam().tracker(), GetParam().consumers);
    ASSERT_EQ(check_random_use(memory, random, 60, GetParam()), "");
    reported += memory.reported();
    changed += memory.changed();
  }
  std::printf("%zu pages reported, %zu of them changed\n", reported, changed);
  EXPECT_GT(changed, 0U);
}

// Four writers, held by a mutex each while a take runs.
TEST_P(OracleTest, nothing_is_missed_of_writers_that_are_held_at_each_take) {
  RandomSource random;
  constexpr std::size_t kThreads = 4;
  TrackedMemory memory(GetParam().tracker());
  memory.grow(TrackedMemory::kPages);
  std::array<std::mutex, kThreads> gates;
  std::array<std::atomic<std::size_t>, kThreads> acts{};
  std::atomic<bool> hold{false};  // so that no writer takes its gate back before a take does
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (std::size_t i = 0; i < kThreads; ++i) {
    writers.emplace_back([&, i, seed = random.next()] {
      RandomSource own(seed);
      // Each has every fourth page, so that neighbours belong to different threads.
      while (!stop.load()) {
        while (hold.load()) std::this_thread::yield();
        const std::lock_guard gate(gates.at(i));
        for (int n = 0; n < 10; ++n) {
          const std::size_t page = own.below(TrackedMemory::kPages / kThreads) * kThreads + i;
          if (own.one_in(10)) {
            must(memory.tracker().purge(memory.pages(page, 1)));
          } else {
            memory.mapping().page(page)[own.below(page_size())] = static_cast<char>(own.next());
          }
        }
        acts.at(i).fetch_add(10);
      }
    });
  }
  std::string wrong;
  for (std::size_t round = 0; round < scaled(60) && wrong.empty(); ++round) {
    // Every writer was at work since the last take.
    std::array<std::size_t, kThreads> before{};
    for (std::size_t i = 0; i < kThreads; ++i) before.at(i) = acts.at(i).load();
    for (std::size_t i = 0; i < kThreads; ++i) {
      while (acts.at(i).load() == before.at(i)) std::this_thread::yield();
    }
    hold.store(true);
    for (std::mutex& gate : gates) gate.lock();
    wrong = memory.take_and_check();
    for (std::mutex& gate : gates) gate.unlock();
    hold.store(false);
  }
  stop.store(true);
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(wrong, "");
  EXPECT_EQ(memory.take_and_check(), "");
  EXPECT_GT(memory.changed(), 0U);
}

TEST_P(OracleTest, nothing_is_missed_of_threads_that_come_and_go) {
  RandomSource random;
  TrackedMemory memory(GetParam().tracker());
  memory.grow(TrackedMemory::kPages);
  for (std::size_t round = 0; round < scaled(40); ++round) {
    std::vector<std::thread> writers;
    for (std::size_t i = 0; i < 4; ++i) {
      writers.emplace_back([&, i, seed = random.next()] {
        RandomSource own(seed);
        for (int n = 0; n < 20; ++n) {
          const std::size_t page = own.below(TrackedMemory::kPages / 4) * 4 + i;
          memory.mapping().page(page)[own.below(page_size())] = static_cast<char>(own.next());
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
    ASSERT_EQ(memory.take_and_check(), "");
  }
}

// --- that the check can fail ---

// Loses what `loses` says of an honest back end's report.
class LossyBackend {
 public:
  using Loses = std::function<void(DirtyBitmap& written, CollectMode mode)>;
  LossyBackend(CompareBackend honest, Loses loses)
      : honest_(std::move(honest)), loses_(std::move(loses)) {}

  BackendKind kind() const { return honest_.kind(); }
  Result<void> watch(ByteRange range) { return honest_.watch(range); }
  void unwatch(ByteRange range) { honest_.unwatch(range); }
  Result<void> collect(ByteRange whole, ByteRange part, CollectMode mode, DirtyBitmap& written) {
    if (auto r = honest_.collect(whole, part, mode, written); !r) return r;
    loses_(written, mode);
    return {};
  }
  Result<void> prefill(ByteRange, Prefill) { return {}; }

 private:
  CompareBackend honest_;
  Loses loses_;
};

TrackedMemory tracked_with_losses(LossyBackend::Loses loses) {
  return TrackedMemory(
      Tracker::over(AnyBackend(LossyBackend(must(CompareBackend::open()), std::move(loses)))));
}

TEST(OracleOfTheOracleTest, a_back_end_that_loses_nothing_passes) {
  RandomSource random;
  TrackedMemory memory = tracked_with_losses([](DirtyBitmap&, CollectMode) {});
  EXPECT_EQ(check_random_use(memory, random, 50), "");
}

TEST(OracleOfTheOracleTest, one_page_lost_once_is_noticed) {
  TrackedMemory memory =
      tracked_with_losses([takes = 0](DirtyBitmap& written, CollectMode) mutable {
        if (++takes == 3) written.reset(7);
      });
  memory.grow(16);
  for (char take = 1; take <= 5; ++take) {
    for (const std::size_t page : {2U, 7U, 9U}) *memory.mapping().page(page) = take;
    EXPECT_EQ(memory.take_and_check(), take == 3 ? "missed page 7" : "");
  }
}

TEST(OracleOfTheOracleTest, losses_now_and_then_are_noticed) {
  RandomSource random;
  TrackedMemory memory =
      tracked_with_losses([takes = 0](DirtyBitmap& written, CollectMode) mutable {
        const PageRange run = written.next_run(0);
        if (!run.empty() && ++takes % 10 == 0) written.reset(run.first);
      });
  const std::string wrong = check_random_use(memory, random, 1000);
  EXPECT_EQ(wrong.substr(0, 12), "missed page ") << wrong;
}

TEST(OracleOfTheOracleTest, a_page_that_is_never_reported_is_noticed) {
  RandomSource random;
  TrackedMemory memory = tracked_with_losses([](DirtyBitmap& written, CollectMode) {
    if (written.size() > 5) written.reset(5);
  });
  // Or, where the page was purged and written to: called zero.
  EXPECT_THAT(check_random_use(memory, random, 1000), HasSubstr("page 5"));
}

TEST(OracleOfTheOracleTest, a_write_after_a_purge_that_is_not_reported_is_noticed) {
  TrackedMemory memory =
      tracked_with_losses([](DirtyBitmap& written, CollectMode) { written.clear(); });
  memory.grow(4);
  EXPECT_EQ(memory.take_and_check(), "");
  *memory.mapping().page(2) = 1;
  EXPECT_EQ(memory.take_and_check(), "missed page 2");
  // The log alone makes a purge known...
  must(memory.tracker().purge(memory.pages(2, 1)));
  EXPECT_EQ(memory.take_and_check(), "");
  // ...and a write after it must not stay unknown.
  must(memory.tracker().purge(memory.pages(3, 1)));
  *memory.mapping().page(3) = 1;
  EXPECT_EQ(memory.take_and_check(), "page 3 is called zero and is not");
}

}  // namespace
}  // namespace pagetide
