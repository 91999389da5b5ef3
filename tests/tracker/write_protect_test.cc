#include "pagetide/tracker/backends/write_protect_backend.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/base/unique_fd.h"
#include "pagetide/tracker/any_backend.h"
#include "pagetide/tracker/tracker.h"
#include "tests/support/child_process.h"
#include "tests/support/environment.h"
#include "tests/support/mapping.h"
#include "tests/support/must.h"
#include "tests/support/no_sanitizer_handlers.h"
#include "tests/support/page_sets.h"
#include "tests/support/random_source.h"
#include "tests/support/skip.h"
#include "tests/tracker/allocation_guard.h"

// A handler of the program's own, installed before the first watch: returns to where a test said,
// else lets the signal kill.
namespace {
sigjmp_buf way_back;
volatile sig_atomic_t way_back_is_set = 0;
volatile std::uintptr_t foreign_address = 0;

void foreign_handler(int signal, siginfo_t* info, void*) {
  foreign_address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (way_back_is_set != 0) siglongjmp(way_back, 1);
  ::signal(signal, SIG_DFL);
}

const bool foreign_handler_is_installed = [] {
  struct sigaction action {};
  action.sa_sigaction = foreign_handler;
  action.sa_flags = SA_SIGINFO;
  return ::sigaction(SIGSEGV, &action, nullptr) == 0;
}();
}  // namespace

namespace pagetide {
namespace {

using ::testing::HasSubstr;
DirtyBitmap collect(WriteProtectBackend& backend, ByteRange whole, ByteRange part,
                    CollectMode mode) {
  DirtyBitmap written(whole.size / page_size());
  must(backend.collect(whole, part, mode, written));
  return written;
}

// Memory that a back end of its own watches.
class Watched {
 public:
  explicit Watched(std::size_t pages, const WriteProtectOptions& options = {})
      : Watched(Mapping(pages), options) {}
  explicit Watched(Mapping mapping, const WriteProtectOptions& options = {})
      : mapping_(std::move(mapping)), backend_(must(WriteProtectBackend::open(options))) {
    must(backend_.watch(mapping_.range()));
  }
  const Mapping& memory() const { return mapping_; }
  WriteProtectBackend& backend() { return backend_; }
  WriteProtectStats stats() const { return backend_.stats(); }

  Pages take() { return take(mapping_.range()); }
  Pages take(ByteRange part) {
    return pages_of(collect(backend_, mapping_.range(), part, CollectMode::take));
  }
  Pages peek() {
    return pages_of(collect(backend_, mapping_.range(), mapping_.range(), CollectMode::peek));
  }
  // Every page populated, written and armed.
  void arm() {
    mapping_.fill(1);
    EXPECT_EQ(take(), all_pages(mapping_.pages()));
  }

 private:
  Mapping mapping_;
  WriteProtectBackend backend_;
};

std::size_t mappings_of_process() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

// --- what is reported ---

TEST(WriteProtectTest, pages_nobody_touched_are_not_reported) {
  Watched watched(64);
  EXPECT_EQ(watched.take(), Pages());
  EXPECT_EQ(watched.take(), Pages());
  EXPECT_EQ(watched.backend().kind(), BackendKind::write_protect);
}

TEST(WriteProtectTest, a_write_is_reported_once) {
  Watched watched(64);
  watched.memory().write(7, 1);
  EXPECT_EQ(watched.take(), (Pages{7}));
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(7, 1);  // the same value: a write all the same
  watched.memory().write(63, 1);
  EXPECT_EQ(watched.take(), (Pages{7, 63}));
  EXPECT_EQ(watched.take(), Pages());
  EXPECT_EQ(watched.stats().counts.faults, 1U);  // the other was a first touch
}

TEST(WriteProtectTest, what_was_populated_before_watching_is_reported_first) {
  Mapping mapping(1200);  // more than two steps
  for (const std::size_t page : {0U, 3U, 511U, 512U, 1199U}) mapping.write(page, 1);
  Watched watched(std::move(mapping));
  EXPECT_EQ(watched.take(), (Pages{0, 3, 511, 512, 1199}));
  EXPECT_EQ(watched.take(), Pages());
}

TEST(WriteProtectTest, every_single_page_of_several_steps_is_told_from_its_neighbours) {
  constexpr std::size_t kPages = 1100;
  Watched watched(kPages);
  watched.arm();
  for (std::size_t page = 0; page < kPages; page += page < 130 || page > 500 ? 1 : 37) {
    watched.memory().write(page, 2);
    ASSERT_EQ(watched.take(), (Pages{page}));
  }
}

TEST(WriteProtectTest, a_peek_arms_nothing) {
  Watched watched(8);
  watched.memory().write(3, 1);
  EXPECT_EQ(watched.peek(), (Pages{3}));
  EXPECT_EQ(watched.peek(), (Pages{3}));
  EXPECT_EQ(watched.take(), (Pages{3}));
  watched.memory().write(3, 1);
  EXPECT_EQ(watched.peek(), (Pages{3}));
  EXPECT_EQ(watched.take(), (Pages{3}));
  EXPECT_EQ(watched.peek(), Pages());
}

TEST(WriteProtectTest, a_part_is_taken_alone) {
  Watched watched(1024);
  watched.arm();
  for (const std::size_t page : {0U, 70U, 71U, 600U, 1023U}) watched.memory().write(page, 2);
  EXPECT_EQ(watched.take(watched.memory().pages(70, 1)), (Pages{70}));
  EXPECT_EQ(watched.take(watched.memory().pages(71, 600)), (Pages{71, 600}));
  watched.memory().write(70, 2);
  EXPECT_EQ(watched.take(), (Pages{0, 70, 1023}));
}

TEST(WriteProtectTest, without_pagemap_the_first_take_names_all_pages_and_the_next_are_exact) {
  const Disabled disabled("pagemap");
  Watched watched(700);
  watched.memory().write(3, 1);
  EXPECT_EQ(watched.take(watched.memory().pages(0, 600)), all_pages(600));
  watched.memory().write(3, 1);
  watched.memory().write(599, 1);
  EXPECT_EQ(watched.take(watched.memory().pages(0, 600)), (Pages{3, 599}));
}

TEST(WriteProtectTest, without_pagemap_scan_nothing_differs) {
  const Disabled disabled("pagemap_scan");
  Watched watched(700);
  watched.memory().write(3, 1);
  watched.memory().write(699, 1);
  EXPECT_EQ(watched.take(), (Pages{3, 699}));
  watched.memory().write(3, 1);
  watched.memory().write(500, 1);
  EXPECT_EQ(watched.take(), (Pages{3, 500}));
}

// Shared pages can be written and yet not be in this process's page tables.
TEST(WriteProtectTest, of_shared_memory_the_first_take_names_all_pages) {
  const UniqueFd file(::memfd_create("pagetide-test", MFD_CLOEXEC));
  const std::size_t size = 8 * page_size();
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(size)), 0);
  void* p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(p, MAP_FAILED);
  const ByteRange range = ByteRange::of(p, size);
  WriteProtectBackend backend = must(WriteProtectBackend::open());
  must(backend.watch(range));
  range.data()[0] = std::byte{1};
  ASSERT_EQ(::madvise(p, size, MADV_DONTNEED), 0);  // still in the file
  EXPECT_EQ(pages_of(collect(backend, range, range, CollectMode::take)), all_pages(8));
  range.data()[3 * page_size()] = std::byte{1};
  EXPECT_EQ(pages_of(collect(backend, range, range, CollectMode::take)), (Pages{3}));
  backend.unwatch(range);
  ::munmap(p, size);
}

TEST(WriteProtectTest, a_purged_page_stays_armed_and_its_next_write_is_seen) {
  Watched watched(16);
  watched.arm();
  const ByteRange purged = watched.memory().pages(4, 4);
  ASSERT_EQ(::madvise(purged.data(), purged.size, MADV_DONTNEED), 0);
  EXPECT_EQ(*static_cast<volatile char*>(watched.memory().page(5)), 0);
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(6, 1);
  EXPECT_EQ(watched.take(), (Pages{6}));
}

TEST(WriteProtectTest, a_reservation_is_left_without_access_where_it_was) {
  EXPECT_EQ(run_in_child([]() -> std::string {
              Watched watched(Mapping(64, PROT_NONE));
              const Mapping& memory = watched.memory();
              for (const std::size_t page : {2U, 3U, 9U}) {
                (void)::mprotect(memory.page(page), page_size(), PROT_READ | PROT_WRITE);
                memory.write(page, 1);
              }
              if (watched.take() != Pages{2, 3, 9}) return "first take";
              memory.write(3, 1);
              memory.write(9, 1);
              if (watched.take() != Pages{3, 9}) return "second take";
              memory.write(4, 1);
              return "wrote where there is no access";
            }),
            "killed by SIGSEGV");
}

// --- prefill ---

TEST(WriteProtectTest, prefilled_pages_are_quiet_when_read_and_exact_when_written) {
  for (const Prefill policy : {Prefill::zero_page, Prefill::marker}) {
    constexpr std::size_t kPages = 1100;
    Watched watched(kPages);
    must(watched.backend().prefill(watched.memory().range(), policy));
    for (std::size_t page = 0; page < kPages; ++page) {
      EXPECT_EQ(*static_cast<volatile char*>(watched.memory().page(page)), 0);
    }
    EXPECT_EQ(watched.take(), Pages());
    for (const std::size_t page : {0U, 511U, 512U, 1099U}) watched.memory().write(page, 1);
    EXPECT_EQ(watched.take(), (Pages{0, 511, 512, 1099}));
  }
}

TEST(WriteProtectTest, prefill_keeps_content_and_dirt_of_pages_in_use) {
  Watched watched(32);
  for (const std::size_t page : {0U, 5U, 6U}) watched.memory().write(page, 42);
  ASSERT_EQ(watched.take(), (Pages{0, 5, 6}));
  watched.memory().write(5, 43);
  watched.memory().write(20, 44);
  must(watched.backend().prefill(watched.memory().range(), Prefill::zero_page));
  EXPECT_EQ(*watched.memory().page(0), 42);
  EXPECT_EQ(*watched.memory().page(5), 43);
  EXPECT_EQ(watched.take(), (Pages{5, 20}));
  watched.memory().write(21, 1);
  EXPECT_EQ(watched.take(), (Pages{21}));
}

TEST(WriteProtectTest, the_other_policies_leave_untouched_memory_alone) {
  Watched watched(32);
  must(watched.backend().prefill(watched.memory().range(), Prefill::automatic));
  must(watched.backend().prefill(watched.memory().range(), Prefill::none));
  watched.memory().write(3, 1);
  EXPECT_EQ(watched.stats().counts.faults, 0U);
  EXPECT_EQ(watched.take(), (Pages{3}));
}

// --- the end of a watch ---

TEST(WriteProtectTest, unwatched_memory_is_writable_and_silent) {
  Watched watched(16);
  watched.arm();
  watched.backend().unwatch(watched.memory().range());
  watched.memory().fill(2);
  DirtyBitmap written(16);
  const auto r = watched.backend().collect(watched.memory().range(), watched.memory().range(),
                                           CollectMode::take, written);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::invalid_argument);
}

TEST(WriteProtectTest, the_end_of_a_back_end_makes_its_memory_writable) {
  const Mapping mapping(16);
  {
    WriteProtectBackend backend = must(WriteProtectBackend::open());
    must(backend.watch(mapping.range()));
    mapping.fill(1);
    EXPECT_EQ(collect(backend, mapping.range(), mapping.range(), CollectMode::take).count(), 16U);
    WriteProtectBackend moved = std::move(backend);
    mapping.write(3, 1);
    EXPECT_EQ(collect(moved, mapping.range(), mapping.range(), CollectMode::take).count(), 1U);
  }
  mapping.fill(2);
  EXPECT_EQ(MappingBudget::used(), 0U);
}

TEST(WriteProtectTest, memory_that_is_gone_can_be_unwatched) {
  WriteProtectBackend backend = must(WriteProtectBackend::open());
  ByteRange range;
  {
    const Mapping mapping(16);
    range = mapping.range();
    must(backend.watch(range));
    mapping.fill(1);
    (void)collect(backend, range, range, CollectMode::take);
  }
  backend.unwatch(range);
  EXPECT_EQ(MappingBudget::used(), 0U);
}

TEST(WriteProtectTest, one_range_has_one_watcher) {
  Watched watched(16);
  WriteProtectBackend other = must(WriteProtectBackend::open());
  const auto r = other.watch(watched.memory().pages(8, 2));
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::already_exists);
  watched.backend().unwatch(watched.memory().range());
  must(other.watch(watched.memory().pages(8, 2)));
}

TEST(WriteProtectTest, several_instances_do_not_mix_up_their_pages) {
  std::vector<std::unique_ptr<Watched>> instances;
  for (int i = 0; i < 5; ++i) {
    instances.push_back(std::make_unique<Watched>(600));
    instances.back()->arm();
  }
  for (std::size_t i = 0; i < 5; ++i) {
    instances[i]->memory().write(i, 2);
    instances[i]->memory().write(599 - i, 2);
  }
  instances.erase(instances.begin() + 2);
  const std::vector<std::size_t> left = {0, 1, 3, 4};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(instances[i]->take(), (Pages{left[i], 599 - left[i]}));
    EXPECT_EQ(instances[i]->take(), Pages());
  }
}

// --- the kernel as a writer ---

TEST(WriteProtectTest, system_calls_that_write_into_armed_pages_fail_with_efault) {
  Watched watched(4);
  const UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  // Before it is armed it works.
  ASSERT_EQ(::read(zero.get(), watched.memory().page(1), 8), 8);
  EXPECT_EQ(watched.take(), (Pages{1}));
  errno = 0;
  EXPECT_EQ(::read(zero.get(), watched.memory().page(1), 8), -1);
  EXPECT_EQ(errno, EFAULT);
  // After a write of the program it works again, and the page is reported.
  watched.memory().write(1, 1);
  EXPECT_EQ(::read(zero.get(), watched.memory().page(1), 8), 8);
  EXPECT_EQ(watched.take(), (Pages{1}));
  // What only reads it always works.
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  EXPECT_EQ(::write(null.get(), watched.memory().page(1), 8), 8);
}

// --- faults that are not ours ---

TEST(WriteProtectTest, a_foreign_handler_gets_null_dereferences_as_before) {
  EXPECT_EQ(run_in_child([]() -> std::string {
              if (!foreign_handler_is_installed) return "sigaction";
              Watched watched(4);
              watched.arm();
              watched.memory().write(1, 1);
              static volatile std::uintptr_t near_null = 8;
              if (sigsetjmp(way_back, 1) == 0) {
                way_back_is_set = 1;
                (void)*reinterpret_cast<volatile char*>(near_null);  // NOLINT
                return "no fault";
              }
              way_back_is_set = 0;
              if (foreign_address != near_null) return "another address";
              return watched.take() == Pages{1} ? "" : "pages";
            }),
            "");
}

TEST(WriteProtectTest, a_null_dereference_kills_by_sigsegv_as_without_us) {
  EXPECT_EQ(run_in_child([]() -> std::string {
              Watched watched(4);
              watched.arm();
              static volatile std::uintptr_t address = 8;
              *reinterpret_cast<volatile char*>(address) = 1;  // NOLINT
              return "survived";
            }),
            "killed by SIGSEGV");
}

// Each would repeat for ever if "the page is writable as far as we know" were answer enough.
TEST(WriteProtectTest, faults_in_watched_memory_that_are_not_about_us_kill_and_do_not_repeat) {
  const auto killed_by = [](const std::function<void(Watched&)>& deed) {
    return run_in_child([&]() -> std::string {
      Watched watched(4);
      watched.arm();
      watched.memory().write(0, 1);
      ::alarm(30);
      deed(watched);
      return "survived";
    });
  };
  EXPECT_EQ(killed_by([](Watched& watched) {
              (void)::mprotect(watched.memory().page(0), page_size(), PROT_READ);
              watched.memory().write(0, 2);
            }),
            "killed by SIGSEGV");
  EXPECT_EQ(killed_by([](Watched& watched) {
              (void)::mprotect(watched.memory().page(0), page_size(), PROT_NONE);
              (void)*static_cast<volatile char*>(watched.memory().page(0));
            }),
            "killed by SIGSEGV");
  EXPECT_EQ(killed_by([](Watched& watched) {
              (void)::munmap(watched.memory().page(0), page_size());
              watched.memory().write(0, 2);
            }),
            "killed by SIGSEGV");
  // A jump into data, both into an armed page and into one that is not.
  for (const std::size_t page : {0U, 1U}) {
    EXPECT_EQ(killed_by([page](Watched& watched) {
                void (*function)() = nullptr;
                char* const target = watched.memory().page(page);
                std::memcpy(&function, &target, sizeof(function));
                function();
              }),
              "killed by SIGSEGV");
  }
}

// --- what the handler may not do ---

TEST(WriteProtectTest, the_handler_allocates_nothing_and_keeps_errno) {
  // So small a budget that every way of letting through is taken.
  Watched watched(4096, {.max_extra_mappings = 32});
  watched.arm();
  errno = EXDEV;
  AllocationGuard::forbidden = true;
  for (std::size_t page = 0; page < 4096; page += 2) watched.memory().write(page, 2);
  AllocationGuard::forbidden = false;
  EXPECT_EQ(errno, EXDEV);
  EXPECT_EQ(AllocationGuard::violations.load(), 0);
  const ProtectionCounts counts = watched.stats().counts;
  EXPECT_GT(counts.faults, counts.coarse_faults);
  EXPECT_GT(counts.coarse_faults, 0U);
  // The check itself must bite.
  AllocationGuard::forbidden = true;
  ::operator delete(::operator new(1));
  AllocationGuard::forbidden = false;
  EXPECT_EQ(AllocationGuard::violations.exchange(0), 2 * PAGETIDE_COUNTS_ALLOCATIONS);
}

TEST(WriteProtectTest, a_take_into_a_bitmap_that_is_there_allocates_nothing) {
  Watched watched(4096);
  watched.arm();
  for (std::size_t page = 0; page < 4096; page += 3) watched.memory().write(page, 2);
  DirtyBitmap written(4096);
  AllocationGuard::forbidden = true;
  const auto r = watched.backend().collect(watched.memory().range(), watched.memory().range(),
                                           CollectMode::take, written);
  AllocationGuard::forbidden = false;
  must(r);
  EXPECT_EQ(AllocationGuard::violations.exchange(0), 0);
  EXPECT_EQ(written.count(), 1366U);
}

// --- fork ---

TEST(WriteProtectTest, a_forked_child_writes_on_and_its_parent_sees_nothing_of_it) {
  Watched watched(64);
  watched.arm();
  watched.memory().write(1, 2);
  EXPECT_EQ(run_in_child([&]() -> std::string {
              watched.memory().fill(3);
              for (std::size_t page = 0; page < 64; ++page) {
                if (*watched.memory().page(page) != 3) return "not stored";
              }
              return "";
            }),
            "");
  EXPECT_EQ(*watched.memory().page(0), 1);
  EXPECT_EQ(watched.take(), (Pages{1}));
  watched.memory().write(2, 2);
  EXPECT_EQ(watched.take(), (Pages{2}));
}

TEST(WriteProtectTest, memory_that_is_not_for_reading_and_writing_is_refused) {
  WriteProtectBackend backend = must(WriteProtectBackend::open());
  for (const int protection :
       {PROT_READ, PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC}) {
    const Mapping mapping(4);
    ASSERT_EQ(::mprotect(mapping.page(1), page_size(), protection), 0);
    const auto r = backend.watch(mapping.range());
    ASSERT_FALSE(r) << protection;
    EXPECT_EQ(r.error().code(), ErrorCode::unsupported);
    EXPECT_THAT(r.error().message(), HasSubstr("not mapped for reading and writing alone"));
  }
  const Mapping reserved(4, PROT_NONE);
  must(backend.watch(reserved.range()));
  backend.unwatch(reserved.range());
}

TEST(WriteProtectTest, a_forked_child_can_watch_what_its_parent_watches) {
  Watched watched(16);
  watched.arm();
  watched.memory().write(2, 2);
  EXPECT_EQ(run_in_child([&]() -> std::string {
              WriteProtectBackend own = must(WriteProtectBackend::open());
              const ByteRange range = watched.memory().range();
              must(own.watch(range));
              watched.memory().write(3, 3);  // armed by the parent
              if (collect(own, range, range, CollectMode::take).count() != 16) return "first take";
              for (const std::size_t page : {3U, 5U}) {
                watched.memory().write(page, 4);
                watched.memory().write(page, 5);
              }
              const Pages seen = pages_of(collect(own, range, range, CollectMode::take));
              return seen == Pages{3, 5} ? "" : "missed a write";
            }),
            "");
  EXPECT_EQ(watched.take(), (Pages{2}));
}

TEST(WriteProtectTest, destroying_an_inherited_back_end_leaves_the_childs_memory_writable) {
  const Mapping mapping(64);
  auto backend = std::make_unique<WriteProtectBackend>(must(WriteProtectBackend::open()));
  must(backend->watch(mapping.range()));
  mapping.fill(1);
  (void)collect(*backend, mapping.range(), mapping.range(), CollectMode::take);
  EXPECT_EQ(run_in_child([&]() -> std::string {
              backend.reset();
              mapping.fill(2);
              // And the child may track for itself.
              WriteProtectBackend own = must(WriteProtectBackend::open());
              must(own.watch(mapping.range()));
              (void)collect(own, mapping.range(), mapping.range(), CollectMode::take);
              mapping.write(5, 3);
              return collect(own, mapping.range(), mapping.range(), CollectMode::take).count() == 1
                         ? ""
                         : "pages";
            }),
            "");
  mapping.write(3, 2);
  EXPECT_EQ(pages_of(collect(*backend, mapping.range(), mapping.range(), CollectMode::take)),
            (Pages{3}));
}

// Forked while other threads are inside the handler or a take: nothing of theirs may hold up the
// child.
TEST(WriteProtectTest, a_child_forked_in_the_middle_of_faults_and_takes_runs_on) {
  EXPECT_EQ(run_in_child([]() -> std::string {
              Watched watched(256);
              watched.arm();
              std::atomic<bool> stop{false};
              std::vector<std::thread> writers;
              for (std::size_t t = 0; t < 2; ++t) {
                writers.emplace_back([&, t] {
                  RandomSource random(t);
                  while (!stop.load()) {
                    std::atomic_ref(watched.memory().page(random.below(256))[t]).store(1);
                  }
                });
              }
              std::thread taker([&] {
                while (!stop.load()) (void)watched.take();
              });
              std::string answer;
              for (std::size_t i = 0; i < scaled(60) && answer.empty(); ++i) {
                answer = run_in_child([&]() -> std::string {
                  ::alarm(30);
                  for (std::size_t page = 0; page < 256; ++page) {
                    std::atomic_ref(watched.memory().page(page)[9]).store(1);
                  }
                  return "";
                });
              }
              stop.store(true);
              taker.join();
              for (std::thread& writer : writers) writer.join();
              return answer;
            }),
            "");
}

// --- the bound on mappings ---

TEST(WriteProtectTest, alternating_pages_stay_within_the_budget_and_none_is_missed) {
  constexpr std::size_t kPages = std::size_t{64} << 10;
  constexpr std::size_t kBudget = 8192;
  Watched watched(kPages, {.max_extra_mappings = kBudget});
  watched.arm();
  const std::size_t before = mappings_of_process();
  for (int round = 0; round < 2; ++round) {
    std::size_t most = 0;
    for (std::size_t page = 0; page < kPages; page += 2) {
      watched.memory().write(page, 2);
      if (page % 4096 == 0) {
        most = std::max(most, mappings_of_process());
        ASSERT_LE(watched.stats().extra_mappings, kBudget);
      }
    }
    most = std::max(most, mappings_of_process());
    EXPECT_LE(most, before + kBudget);
    EXPECT_GT(most, before + kBudget / 2);  // and it is made use of
    const Pages taken = watched.take();
    for (std::size_t page = 0; page < kPages; page += 2) ASSERT_EQ(taken.count(page), 1U) << page;
    const ProtectionCounts counts = watched.stats().counts;
    std::printf(
        "%zu of %zu pages reported, %llu faults, %llu of them coarse, %zu mappings at most\n",
        taken.size(), kPages / 2, static_cast<unsigned long long>(counts.faults),
        static_cast<unsigned long long>(counts.coarse_faults), most);
    EXPECT_GT(counts.coarse_faults, 0U);
    // All armed again: one mapping, which counts for two borders.
    EXPECT_EQ(watched.stats().extra_mappings, 2U);
    EXPECT_LE(mappings_of_process(), before + 20);  // the test's own sets take some
    EXPECT_EQ(watched.take(), Pages());
  }
}

TEST(WriteProtectTest, the_bound_follows_that_of_the_system) {
  std::size_t limit = 65530;
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  Watched watched(1);
  EXPECT_EQ(watched.stats().max_extra_mappings, std::min<std::size_t>(8192, limit / 8));
}

TEST(WriteProtectTest, surplus_pages_are_counted) {
  Watched watched(4096, {.max_extra_mappings = 64});
  watched.arm();
  std::size_t written = 0;
  for (std::size_t page = 0; page < 4096; page += 64, ++written) watched.memory().write(page, 2);
  const std::size_t taken = watched.take().size();
  EXPECT_GT(taken, written);
  EXPECT_EQ(watched.stats().counts.surplus_pages + watched.stats().counts.faults, taken);
}

TEST(WriteProtectTest,
     sparse_memory_beyond_the_budget_is_reported_again_and_again_and_never_missed) {
  constexpr std::size_t kPages = 2048;
  Watched watched(kPages, {.max_extra_mappings = 128});
  Pages sparse;
  for (std::size_t page = 0; page < kPages; page += 2) {
    watched.memory().write(page, 1);
    sparse.insert(page);
  }
  EXPECT_EQ(watched.take(), sparse);
  EXPECT_LE(watched.stats().extra_mappings, 128U);
  EXPECT_GT(watched.stats().counts.runs_left_unarmed, 0U);
  const Pages again = watched.take();
  EXPECT_LT(again.size(), sparse.size());
  EXPECT_GT(again.size(), 0U);
  // Filling the gaps lets them be armed.
  watched.memory().fill(2);
  EXPECT_EQ(watched.take(), all_pages(kPages));
  EXPECT_EQ(watched.take(), Pages());
}

// The system's own limit, whatever the budget says: others in the process make mappings too.
TEST(WriteProtectTest, where_the_system_gives_no_more_mappings_writes_still_get_through) {
#ifdef __SANITIZE_THREAD__
  PAGETIDE_SKIP("ThreadSanitizer ends the program when it gets no mapping");
#endif
  std::size_t limit = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  if (limit == 0 || limit > 200'000) GTEST_SKIP() << "vm.max_map_count is not the usual";
  EXPECT_EQ(run_in_child([&]() -> std::string {
              Watched watched(4096, {.max_extra_mappings = std::size_t{1} << 20});
              watched.arm();
              // One mapping a page until there are no more.
              const Mapping filler(limit, PROT_NONE);
              bool is_full = false;
              for (std::size_t page = 0; page < limit && !is_full; page += 2) {
                is_full = ::mprotect(filler.page(page), page_size(), PROT_READ) != 0;
              }
              if (!is_full) return "could not use up the mappings";
              for (std::size_t page = 7; page < 4096; page += 512) watched.memory().write(page, 2);
              const Pages taken = watched.take();
              for (std::size_t page = 7; page < 4096; page += 512) {
                if (taken.count(page) == 0) return "missed page " + std::to_string(page);
              }
              // Arming them is possible again, as one run.
              watched.memory().write(7, 3);
              return watched.take().count(7) == 1 ? "" : "missed afterwards";
            }),
            "");
}

// --- against an oracle ---

// Writes, purges, prefills and takes of random parts; a take must name every page whose content
// is not that of its last take.
TEST(WriteProtectTest, no_changed_page_is_ever_missing_from_a_take) {
  RandomSource random;
  for (const char* disabled : {"", "pagemap_scan", "pagemap"}) {
    const Disabled environment(disabled);
    constexpr std::size_t kPages = 1300;
    const std::size_t budget = random.one_in(2) ? 16 : 4096;
    Watched watched(kPages, {.max_extra_mappings = budget});
    const Mapping& memory = watched.memory();
    std::vector<char> seen(kPages, 0);  // first byte of each page at its last take
    std::vector<char> now(kPages, 0);
    std::vector<bool> purged(kPages, false);
    const std::size_t steps = scaled(1500);
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t first = random.below(kPages);
      const std::size_t count =
          std::min(kPages - first, random.between(1, random.one_in(8) ? 700 : 20));
      switch (random.below(8)) {
        case 0:
          must(watched.backend().prefill(memory.pages(first, count), random.one_in(2)
                                                                         ? Prefill::zero_page
                                                                         : Prefill::automatic));
          break;
        case 1:
          (void)::madvise(memory.page(first), count * page_size(), MADV_DONTNEED);
          for (std::size_t page = first; page < first + count; ++page) {
            now[page] = 0;
            purged[page] = true;  // known to whoever purges
          }
          break;
        case 2:
        case 3: {
          const Pages taken = watched.take(memory.pages(first, count));
          for (std::size_t page = first; page < first + count; ++page) {
            ASSERT_EQ(*memory.page(page), now[page]);
            if (now[page] != seen[page] && !purged[page]) {
              ASSERT_EQ(taken.count(page), 1U) << "missed page " << page << " in step " << step;
            }
            seen[page] = now[page];
            purged[page] = false;
          }
          break;
        }
        default:
          for (std::size_t i = 0; i < 10; ++i) {
            const std::size_t page = first + random.below(count);
            now[page] = static_cast<char>(now[page] + 1);
            memory.write(page, now[page]);
            purged[page] = false;
          }
      }
      ASSERT_LE(watched.stats().extra_mappings, budget);
    }
  }
}

// Four writers and a taker who copies what is named. At the end the copy must be the memory.
TEST(WriteProtectTest, nothing_is_missed_with_four_writers_and_takes_at_the_same_time) {
  for (const std::size_t budget : {std::size_t{4096}, std::size_t{24}}) {
    constexpr std::size_t kPages = 600;
    Watched watched(kPages, {.max_extra_mappings = budget});
    RandomSource random;
    const std::size_t words = page_size() / sizeof(std::uint64_t);
    const auto word = [&](std::size_t page, std::size_t i) {
      return std::atomic_ref(reinterpret_cast<std::uint64_t*>(watched.memory().page(page))[i]);
    };
    std::vector<std::uint64_t> copy(kPages * words);
    const auto take_and_copy = [&] {
      for (const std::size_t page : watched.take()) {
        for (std::size_t i = 0; i < words; ++i) {
          copy[page * words + i] = word(page, i).load(std::memory_order_relaxed);
        }
      }
    };
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> writes{0};
    std::vector<std::thread> writers;
    for (int i = 0; i < 4; ++i) {
      writers.emplace_back([&, seed = random.next()] {
        RandomSource own(seed);
        while (!stop.load(std::memory_order_relaxed)) {
          // All of them on a few pages at a time, so that they fault on the same ones.
          const std::size_t near = own.below(kPages - 8);
          for (int n = 0; n < 20; ++n) {
            word(near + own.below(8), own.below(words))
                .store(own.next(), std::memory_order_relaxed);
          }
          writes.fetch_add(20, std::memory_order_relaxed);
        }
      });
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    std::size_t takes = 0;
    for (; std::chrono::steady_clock::now() < end || takes < 50; ++takes) take_and_copy();
    stop.store(true);
    for (std::thread& writer : writers) writer.join();
    take_and_copy();
    const ProtectionCounts counts = watched.stats().counts;
    std::printf("%zu takes, %llu writes, %llu faults, %llu coarse, %llu settled\n", takes,
                static_cast<unsigned long long>(writes.load()),
                static_cast<unsigned long long>(counts.faults),
                static_cast<unsigned long long>(counts.coarse_faults),
                static_cast<unsigned long long>(counts.faults_settled));
    EXPECT_GT(counts.faults, 100U);
    EXPECT_LE(watched.stats().extra_mappings, budget);
    for (std::size_t page = 0; page < kPages; ++page) {
      for (std::size_t i = 0; i < words; ++i) {
        ASSERT_EQ(word(page, i).load(), copy[page * words + i])
            << "word " << i << " of page " << page;
      }
    }
  }
}

// A take with the writers held must be the state of one instant: what was written before it is
// named by it, not by the next. A handler of another thread may be half done at that moment.
TEST(WriteProtectTest, what_a_thread_wrote_before_a_take_is_in_this_take) {
  Watched watched(64);
  watched.arm();
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> asked{0};
  std::atomic<std::uint64_t> answered{0};
  // Faults on the very pages that the other one writes, and is never waited for.
  std::thread disturber([&] {
    RandomSource own(3);
    while (!stop.load(std::memory_order_relaxed)) {
      std::atomic_ref(watched.memory().page(own.below(64))[1]).store(1, std::memory_order_relaxed);
    }
  });
  const std::uint64_t rounds = scaled(500);
  std::thread writer([&] {
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      asked.wait(round - 1);
      std::atomic_ref(watched.memory().page(round * 7 % 64)[0]).store(static_cast<char>(round));
      answered.store(round);
      answered.notify_one();
    }
  });
  RandomSource random(5);
  std::uint64_t missed = 0;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    // Takes in between make handlers meet arming.
    if (random.one_in(3)) (void)watched.take();
    asked.store(round);
    asked.notify_one();
    answered.wait(round - 1);
    missed += watched.take().count(round * 7 % 64) == 0 ? 1U : 0U;
  }
  stop.store(true);
  writer.join();
  disturber.join();
  EXPECT_EQ(missed, 0U);
}

// A thread that finds the page open already, because another one was first, tries again. That it
// does so at one address in every epoch must not be taken for a fault that stays. The race is lost
// for sure by a handler on top of ours, in which the thread waits for the other one's write.
TEST(WriteProtectTest, a_thread_that_loses_the_race_for_one_page_in_every_epoch_lives_on) {
#ifdef __SANITIZE_THREAD__
  PAGETIDE_SKIP("ThreadSanitizer holds signals back, and with them the handler on top of ours");
#endif
  EXPECT_EQ(run_in_child([]() -> std::string {
              constexpr int kRounds = 5;
              static struct sigaction ours;
              static std::atomic<int> asked{0};
              static std::atomic<int> answered{0};
              static thread_local bool is_loser = false;
              Watched watched(1);
              watched.arm();
              struct sigaction top {};
              top.sa_sigaction = [](int signal, siginfo_t* info, void* context) {
                if (is_loser && answered.load() == asked.load()) {
                  asked.fetch_add(1);
                  while (answered.load() < asked.load()) ::usleep(50);
                  is_loser = false;  // one lost race a round
                }
                ours.sa_sigaction(signal, info, context);
              };
              top.sa_flags = SA_SIGINFO;
              ::sigaction(SIGSEGV, &top, &ours);
              std::thread winner([&] {
                for (int round = 1; round <= kRounds; ++round) {
                  while (asked.load() < round) ::usleep(50);
                  std::atomic_ref(*watched.memory().page(0)).store(1);
                  answered.store(round);
                }
              });
              std::string answer;
              for (int round = 0; round < kRounds; ++round) {
                is_loser = true;
                std::atomic_ref(*watched.memory().page(0)).store(2);
                if (watched.take() != Pages{0}) answer = "missed";
              }
              winner.join();
              const ProtectionCounts counts = watched.stats().counts;
              if (counts.faults_settled != kRounds || counts.faults != kRounds) answer = "counts";
              return answer;
            }),
            "");
}

// Writers go on while the watch ends and begins again: no write is lost, nobody is killed.
TEST(WriteProtectTest, watches_end_and_begin_while_threads_write) {
  const Mapping mapping(256);
  mapping.fill(1);
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  std::vector<std::uint32_t> counts(3 * 256);
  for (std::size_t t = 0; t < 3; ++t) {
    writers.emplace_back([&, t] {
      RandomSource random(t);
      while (!stop.load(std::memory_order_relaxed)) {
        const std::size_t page = random.below(256);
        auto* const target = reinterpret_cast<std::uint32_t*>(mapping.page(page)) + t;
        std::atomic_ref(*target).store(++counts[t * 256 + page], std::memory_order_relaxed);
      }
    });
  }
  WriteProtectBackend backend = must(WriteProtectBackend::open());
  std::size_t reported = 0;
  for (std::size_t round = 0; round < scaled(200); ++round) {
    must(backend.watch(mapping.range()));
    for (int i = 0; i < 3; ++i) {
      reported += collect(backend, mapping.range(), mapping.range(), CollectMode::take).count();
    }
    backend.unwatch(mapping.range());
  }
  stop.store(true);
  for (std::thread& writer : writers) writer.join();
  EXPECT_GT(reported, 256U);
  for (std::size_t t = 0; t < 3; ++t) {
    for (std::size_t page = 0; page < 256; ++page) {
      if (counts[t * 256 + page] == 0) continue;
      ASSERT_EQ(reinterpret_cast<std::uint32_t*>(mapping.page(page))[t], counts[t * 256 + page]);
    }
  }
}

// --- behind a Tracker ---

TEST(WriteProtectTest, works_behind_a_tracker_with_purges_and_peeks) {
  const Mapping mapping(64);
  Tracker tracker = Tracker::over(AnyBackend(must(WriteProtectBackend::open())));
  const WatchId watch = must(tracker.watch(mapping.range()));
  mapping.fill(1);
  EXPECT_EQ(must(tracker.collect(watch, CollectMode::take)).written.count(), 64U);
  must(tracker.purge(mapping.pages(8, 8)));
  mapping.write(9, 1);
  mapping.write(40, 1);
  const Collected peeked = must(tracker.collect(watch, CollectMode::peek));
  const Collected taken = must(tracker.collect(watch, CollectMode::take));
  EXPECT_EQ(pages_of(taken.written), (Pages{9, 40}));
  EXPECT_EQ(pages_of(taken.zeroed), (Pages{8, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(pages_of(peeked.written), pages_of(taken.written));
}

TEST(WriteProtectTest, the_probe_finds_protection_here_and_installs_nothing) {
  EXPECT_EQ(run_in_child([]() -> std::string {
              struct sigaction before {};
              ::sigaction(SIGSEGV, nullptr, &before);
              if (auto r = WriteProtectBackend::probe(); !r) return r.error().message();
              struct sigaction after {};
              ::sigaction(SIGSEGV, nullptr, &after);
              return before.sa_sigaction == after.sa_sigaction ? "" : "a handler appeared";
            }),
            "");
  EXPECT_THAT(std::string(WriteProtectBackend::kLimits), HasSubstr("EFAULT"));
}

}  // namespace
}  // namespace pagetide
