#include "pagetide/allocator/safepoints_c.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>

#include "pagetide/allocator/safepoints_c_handle.h"
#include "tests/support/c_api.h"

namespace pagetide {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kLongMs = 60'000;

using Points = std::unique_ptr<pagetide_safepoints, decltype(&pagetide_safepoints_destroy)>;
using MutatorHandle = std::unique_ptr<pagetide_mutator, decltype(&pagetide_mutator_destroy)>;

Points create_points() {
  pagetide_safepoints* points = nullptr;
  must_c(pagetide_safepoints_create(&points));
  return {points, pagetide_safepoints_destroy};
}

MutatorHandle create_mutator(const Points& points, const char* name = nullptr) {
  pagetide_mutator* mutator = nullptr;
  must_c(pagetide_mutator_create(points.get(), name, &mutator));
  return {mutator, pagetide_mutator_destroy};
}

TEST(SafepointsC, null_pointers_are_errors_or_fine) {
  const Points points = create_points();
  pagetide_mutator* mutator = nullptr;
  EXPECT_EQ(pagetide_safepoints_create(nullptr), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_safepoints_stop(nullptr, 0), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_safepoints_resume(nullptr), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_mutator_create(nullptr, "x", &mutator), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_mutator_create(points.get(), "x", nullptr), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(last_message(), "mutator must not be a null pointer.");
  EXPECT_EQ(points->points.mutators(), 0U);
  pagetide_mutator_poll(nullptr);
  pagetide_mutator_leave(nullptr);
  pagetide_mutator_enter(nullptr);
  pagetide_mutator_destroy(nullptr);
  pagetide_safepoints_destroy(nullptr);
}

TEST(SafepointsC, a_mutator_at_work_is_late_and_named) {
  const Points points = create_points();
  std::atomic<int> step = 0;
  std::thread thread([&] {
    const MutatorHandle mutator = create_mutator(points, "counter");
    step = 1;
    while (step != 2) std::this_thread::yield();
  });
  while (step != 1) std::this_thread::yield();
  EXPECT_EQ(pagetide_safepoints_stop(points.get(), 1), PAGETIDE_TIMED_OUT);
  EXPECT_THAT(last_message(), AllOf(HasSubstr("1 of 1 threads"), HasSubstr("'counter'")));
  step = 2;
  thread.join();
}

TEST(SafepointsC, a_mutator_waits_at_a_poll) {
  const Points points = create_points();
  std::atomic<bool> over = false;
  std::atomic<bool> started = false;
  std::uint64_t count = 0;
  std::thread thread([&] {
    const MutatorHandle mutator = create_mutator(points);
    while (!over) {
      ++count;
      pagetide_mutator_poll(mutator.get());
      started = true;
    }
  });
  while (!started) std::this_thread::yield();
  must_c(pagetide_safepoints_stop(points.get(), UINT64_MAX));
  const std::uint64_t seen = count;
  EXPECT_GT(seen, 0U);
  std::this_thread::yield();
  EXPECT_EQ(count, seen);
  must_c(pagetide_safepoints_resume(points.get()));
  over = true;
  thread.join();
}

TEST(SafepointsC, who_has_left_is_not_waited_for_until_it_enters) {
  const Points points = create_points();
  std::atomic<int> step = 0;
  std::thread thread([&] {
    const MutatorHandle mutator = create_mutator(points);
    pagetide_mutator_leave(mutator.get());
    step = 1;
    while (step != 2) std::this_thread::yield();
    pagetide_mutator_enter(mutator.get());
    step = 3;
    while (step != 4) std::this_thread::yield();
  });
  while (step != 1) std::this_thread::yield();
  must_c(pagetide_safepoints_stop(points.get(), 0));
  must_c(pagetide_safepoints_resume(points.get()));
  step = 2;
  while (step != 3) std::this_thread::yield();
  EXPECT_EQ(pagetide_safepoints_stop(points.get(), 0), PAGETIDE_TIMED_OUT);
  step = 4;
  thread.join();
}

TEST(SafepointsC, keeps_errno) {
  const Points points = create_points();
  const MutatorHandle mutator = create_mutator(points);
  errno = ESRCH;
  must_c(pagetide_safepoints_stop(points.get(), kLongMs));
  must_c(pagetide_safepoints_resume(points.get()));
  pagetide_mutator_poll(mutator.get());
  pagetide_mutator_leave(mutator.get());
  pagetide_mutator_enter(mutator.get());
  EXPECT_EQ(errno, ESRCH);
}

}  // namespace
}  // namespace pagetide
