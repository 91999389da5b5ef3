// Guest RAM on a real KVM: the tracker against KVM's dirty log, round by round, and against the
// memory itself while the guest runs. And the example as its users run it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "examples/kvm_guest/guest_program.h"
#include "examples/kvm_guest/options.h"
#include "examples/kvm_guest/page_tables.h"
#include "examples/kvm_guest/round.h"
#include "examples/kvm_guest/watched_guest.h"
#include "pagetide/tracker/capabilities.h"
#include "tests/support/must.h"
#include "tests/support/run_program.h"
#include "tests/support/skip.h"
#include "tests/support/test_scale.h"

namespace kvm_guest {

// What CTest calls the tests by.
void PrintTo(Ring ring, std::ostream* out) {
  *out << (ring == Ring::kernel ? "ring 0" : "ring 3");
}

namespace {

using pagetide::DirtyBitmap;
using pagetide::must;
using pagetide::PageRange;
using pagetide::run_program;
using pagetide::RunResult;
using pagetide::scaled;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Pages = std::vector<std::uint32_t>;

constexpr std::size_t kMiB = std::size_t{1} << 20;

Pages pages_of(const DirtyBitmap& set) {
  Pages pages;
  set.for_each_run([&](PageRange run) {
    for (std::size_t page = run.first; page < run.end(); ++page) {
      pages.push_back(static_cast<std::uint32_t>(page));
    }
  });
  return pages;
}

DirtyBitmap set_of(const Pages& pages, std::size_t page_count) {
  DirtyBitmap set(page_count);
  for (const std::uint32_t page : pages) set.set(page);
  return set;
}

const std::uint32_t kWorkListPage = kWorkListAddress / kGuestPageBytes;

// Why this machine cannot run a guest. A failing check of the machine is no excuse for a guest
// that fails later: the check runs one instruction and none of the program under test.
std::optional<std::string> why_not(Ring ring) {
  if (auto r = pagetide::check_backend(pagetide::BackendKind::uffd_async); !r)
    return r.error().message();
  if (auto r = check_kvm(ring); !r) return r.error().message();
  return std::nullopt;
}

class KvmGuestTest : public testing::TestWithParam<Ring> {
 protected:
  void SetUp() override {
    if (const auto reason = why_not(GetParam())) PAGETIDE_SKIP(reason->c_str());
  }

  WatchedGuest guest_of(std::size_t memory_bytes) const {
    return must(WatchedGuest::create({memory_bytes, GetParam(), kKvmDevice}));
  }
};

TEST_P(KvmGuestTest, tracker_agrees_with_kvm_in_every_round) {
  constexpr std::size_t kMaxPages = 200;
  std::mt19937_64 random(pagetide::test_seed());
  WatchedGuest guest = guest_of(64 * kMiB);
  for (std::size_t number = 0; number < scaled(200); ++number) {
    const Pages pages = must(guest.choose_pages(random() % (kMaxPages + 1), random));
    const Pages device = must(guest.choose_pages(random() % 8, random));
    const Round round = must(guest.run_round(pages, device));
    ASSERT_EQ(describe(compare(round)), "") << "round " << number;
  }
}

// The pages lie close together: few words of the bitmaps, few page tables, all of them written to
// in most rounds.
TEST_P(KvmGuestTest, tracker_agrees_with_kvm_in_a_small_memory) {
  std::mt19937_64 random(pagetide::test_seed());
  WatchedGuest guest = guest_of(1 * kMiB);
  for (std::size_t number = 0; number < scaled(200); ++number) {
    const std::size_t count = random() % (guest.data_pages().count + 1);
    const Pages pages = must(guest.choose_pages(count, random));
    const Round round = must(guest.run_round(pages, {}));
    ASSERT_EQ(describe(compare(round)), "") << "round " << number;
  }
}

TEST_P(KvmGuestTest, set_up_is_reported_by_the_first_round_and_nothing_by_an_idle_one) {
  WatchedGuest guest = guest_of(8 * kMiB);
  const Round first = must(guest.run_round({}, {}));
  EXPECT_EQ(describe(compare(first)), "");
  for (std::size_t page = kWorkListPage; page < guest.data_pages().first; ++page) {
    EXPECT_TRUE(first.tracker.test(page)) << page;
  }
  const Round idle = must(guest.run_round({}, {}));
  EXPECT_EQ(pages_of(idle.tracker), Pages{kWorkListPage});
}

TEST_P(KvmGuestTest, only_the_tracker_sees_what_a_device_writes) {
  WatchedGuest guest = guest_of(8 * kMiB);
  must(guest.run_round({}, {}));
  const Round round = must(guest.run_round(Pages{500, 1000}, Pages{700, 1000}));
  EXPECT_EQ(describe(compare(round)), "");
  EXPECT_FALSE(round.kvm.test(700));
  EXPECT_TRUE(round.tracker.test(700));
  EXPECT_TRUE(round.kvm.test(1000));
  EXPECT_TRUE(round.tracker.test(1000));
}

// Every processor sets the accessed and dirty bits of page tables on a first use.
TEST_P(KvmGuestTest, page_tables_that_the_processor_writes_to_are_seen) {
  WatchedGuest guest = guest_of(8 * kMiB);
  must(guest.run_round({}, {}));
  const Round round = must(guest.run_round(Pages{1000}, {}));
  EXPECT_EQ(describe(compare(round)), "");
  const std::uint64_t table =
      kPageTableAddress / kGuestPageBytes + page_table_pages(0) + 1000 / 512;
  EXPECT_TRUE(round.kvm.test(table));
  EXPECT_TRUE(round.tracker.test(table));
}

TEST_P(KvmGuestTest, dropping_any_page_of_a_real_round_is_noticed) {
  std::mt19937_64 random(pagetide::test_seed());
  WatchedGuest guest = guest_of(8 * kMiB);
  must(guest.run_round({}, {}));
  const Pages pages = must(guest.choose_pages(60, random));
  const Pages device = must(guest.choose_pages(4, random));
  Round round = must(guest.run_round(pages, device));
  ASSERT_EQ(describe(compare(round)), "");
  const Pages reported = pages_of(round.tracker);
  ASSERT_GT(reported.size(), pages.size());
  for (const std::uint32_t page : reported) {
    round.tracker.reset(page);
    EXPECT_EQ(pages_of(compare(round).missed), Pages{page});
    round.tracker.set(page);
  }
}

// What migrates a virtual machine: copies what was written while the guest goes on, at last the
// rest while it stands still. A page that a take missed stays behind in the copy.
class MigrationCopy {
 public:
  explicit MigrationCopy(WatchedGuest& guest)
      : guest_(guest), ram_(guest.memory().range().data()), copy_(guest.memory().range().size) {}

  void update_while_the_guest_runs() {
    DirtyBitmap written = must(guest_.take_written());
    // The monitor's other thread writes the list: to copy it would be a data race.
    list_is_stale_ |= written.test(kWorkListPage);
    written.reset(kWorkListPage);
    update(written);
  }
  void update_while_the_guest_stands_still() {
    DirtyBitmap written = must(guest_.take_written());
    if (std::exchange(list_is_stale_, false)) written.set(kWorkListPage);
    update(written);
  }
  Pages different_pages() const {
    Pages pages;
    for (std::uint32_t page = 0; page < guest_.memory().page_count(); ++page) {
      const std::size_t offset = page * kGuestPageBytes;
      if (std::memcmp(copy_.data() + offset, ram_ + offset, kGuestPageBytes) != 0) {
        pages.push_back(page);
      }
    }
    return pages;
  }

 private:
  void update(const DirtyBitmap& written) {
    for (const std::uint32_t page : pages_of(written)) {
      const std::size_t offset = page * kGuestPageBytes;
      std::memcpy(copy_.data() + offset, ram_ + offset, kGuestPageBytes);
    }
  }

  WatchedGuest& guest_;
  const std::byte* ram_;
  std::vector<std::byte> copy_;
  bool list_is_stale_ = false;
};

TEST_P(KvmGuestTest, a_copy_made_while_the_guest_runs_ends_up_equal) {
  constexpr std::uint32_t kRoundsPerCycle = 10;  // so few that most pages are written only once
  std::mt19937_64 random(pagetide::test_seed());
  WatchedGuest guest = guest_of(16 * kMiB);
  MigrationCopy copy(guest);
  std::uint32_t mark = 0;
  std::size_t takes_meanwhile = 0;
  for (std::size_t cycle = 0; cycle < scaled(40); ++cycle) {
    std::atomic<bool> done = false;
    std::thread processor([&] {
      for (std::uint32_t i = 0; i < kRoundsPerCycle; ++i) {
        must(guest.work(must(guest.choose_pages(100, random)), ++mark));
      }
      done = true;
    });
    while (!done) {
      copy.update_while_the_guest_runs();
      ++takes_meanwhile;
      // A take unmaps from the guest what it arms; without a pause it would hardly get on.
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    processor.join();
    copy.update_while_the_guest_stands_still();
    ASSERT_EQ(copy.different_pages(), Pages()) << "cycle " << cycle;
  }
  EXPECT_GT(takes_meanwhile, 0U);
}

TEST_P(KvmGuestTest, program_ends_with_agreement) {
  const RunResult result =
      run_program({KVM_GUEST_PATH, "--rounds", "5", "--memory-mib", "16", "--pages", "64", "--ring",
                   GetParam() == Ring::kernel ? "0" : "3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("round    5: pages written by the guest   64"));
  EXPECT_THAT(result.out, HasSubstr("agreement in all 5 rounds"));
  EXPECT_THAT(result.err, IsEmpty());
}

TEST_P(KvmGuestTest, program_refuses_more_pages_than_there_are) {
  const RunResult result = run_program({KVM_GUEST_PATH, "--memory-mib", "1", "--pages", "300"});
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("cannot choose 300 pages: the guest has 249 pages"));
}

INSTANTIATE_TEST_SUITE_P(in, KvmGuestTest, testing::Values(Ring::kernel, Ring::user),
                         [](const auto& ring) {
                           return std::string(ring.param == Ring::kernel ? "ring_0" : "ring_3");
                         });

// What follows needs no KVM.

Round agreeing_round() {
  constexpr std::size_t kPages = 100;
  return {set_of({20, 21}, kPages), DirtyBitmap(kPages), set_of({1, 30}, kPages),
          set_of({1, 4, 20, 21, 30}, kPages), set_of({4, 20, 21}, kPages)};
}

TEST(KvmGuestCompareTest, agreement_has_no_differences) {
  const Differences differences = compare(agreeing_round());
  EXPECT_FALSE(differences.any());
  EXPECT_EQ(describe(differences), "");
}

TEST(KvmGuestCompareTest, a_page_the_tracker_dropped_is_noticed) {
  for (const std::uint32_t page : Pages{1, 4, 20, 21, 30}) {
    Round round = agreeing_round();
    round.tracker.reset(page);
    const Differences differences = compare(round);
    EXPECT_TRUE(differences.any());
    EXPECT_EQ(describe(differences), "missed by the tracker: " + std::to_string(page));
  }
}

TEST(KvmGuestCompareTest, a_page_nobody_wrote_is_noticed) {
  Round round = agreeing_round();
  round.tracker.set(99);
  EXPECT_TRUE(compare(round).any());
  EXPECT_EQ(describe(compare(round)), "reported by the tracker and written by nobody: 99");
}

TEST(KvmGuestCompareTest, a_log_without_the_guests_pages_is_noticed) {
  Round round = agreeing_round();
  round.kvm = DirtyBitmap(round.kvm.size());
  EXPECT_TRUE(compare(round).any());
  EXPECT_EQ(describe(compare(round)),
            "reported by the tracker and written by nobody: 4, 20-21; "
            "written by the guest and missing in KVM's log: 20-21");
}

TEST(KvmGuestCompareTest, work_that_was_not_done_is_noticed) {
  Round round = agreeing_round();
  round.undone.set(21);
  EXPECT_TRUE(compare(round).any());
  EXPECT_EQ(describe(compare(round)), "not written by the guest: 21");
}

TEST(KvmGuestProgramTest, missing_device_is_explained) {
  if (auto r = pagetide::check_backend(pagetide::BackendKind::uffd_async); !r)
    PAGETIDE_SKIP(r.error().message().c_str());
  const RunResult result = run_program({KVM_GUEST_PATH, "--device", "/dev/null/kvm"});
  EXPECT_EQ(result.exit_code, kExitUnsupported);
  EXPECT_THAT(result.err, HasSubstr("cannot open /dev/null/kvm: Not a directory. Load the module"));
}

TEST(KvmGuestProgramTest, device_of_another_kind_is_explained) {
  if (auto r = pagetide::check_backend(pagetide::BackendKind::uffd_async); !r)
    PAGETIDE_SKIP(r.error().message().c_str());
  const RunResult result = run_program({KVM_GUEST_PATH, "--device", "/dev/null"});
  EXPECT_EQ(result.exit_code, kExitUnsupported);
  EXPECT_THAT(result.err, HasSubstr("/dev/null does not speak version 12 of KVM's interface"));
}

TEST(KvmGuestProgramTest, missing_write_protection_is_explained) {
  const RunResult result =
      run_program({KVM_GUEST_PATH}, {.environment = {{"PAGETIDE_DISABLE", "userfaultfd"}}});
  EXPECT_EQ(result.exit_code, kExitUnsupported);
  EXPECT_THAT(result.err, HasSubstr("switched off by PAGETIDE_DISABLE"));
}

TEST(KvmGuestProgramTest, wrong_usage_is_refused) {
  EXPECT_EQ(run_program({KVM_GUEST_PATH, "--rounds", "0"}).exit_code, kExitUsage);
  EXPECT_EQ(run_program({KVM_GUEST_PATH, "--memory-mib", "0"}).exit_code, kExitUsage);
  EXPECT_EQ(run_program({KVM_GUEST_PATH, "--memory-mib", "1025"}).exit_code, kExitUsage);
  EXPECT_EQ(run_program({KVM_GUEST_PATH, "--pages", "1023"}).exit_code, kExitUsage);
  EXPECT_EQ(run_program({KVM_GUEST_PATH, "--ring", "1"}).exit_code, kExitUsage);
  EXPECT_EQ(run_program({KVM_GUEST_PATH, "--help"}).exit_code, 0);
}

}  // namespace
}  // namespace kvm_guest
