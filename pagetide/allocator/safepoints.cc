#include "pagetide/allocator/safepoints.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "pagetide/base/futex.h"
#include "pagetide/base/unique_fd.h"

// How a stop and its mutators find each other. Three kinds of steps matter, all sequentially
// consistent, so that there is one order of them:
//
//   stop     S1 request = n     S2 read m.state   if at work: sleep while it is, again S2
//   enter    E1 state = at work E2 read request   if not 0: state = away, wake, sleep, again E1
//   leave    L1 state = away    L2 read request   if not 0: wake who sleeps on the state
//
// Nobody is missed: where E2 reads 0 it is before S1, so E1 is before S2, which sees a thread at
// work and waits for it. Where E2 reads n the thread goes back without having written anything, so
// it does not matter that a stop may have passed it by already.
//
// No wake-up is lost: where L2 reads 0 it is before S1, so L1 is before S2, which does not sleep.
// Where it reads n it wakes, after L1; who goes to sleep after that finds that the state is another
// one, which the kernel looks at in the same step (futex_wait()).
//
// What mutators wrote before L1 is seen after S2 reads its value; what is written during the stop
// is seen after E2 reads the 0 of let_go(). A poll is a leave and an enter, after a load that need
// not be ordered: whoever it overlooks now is waited for.

namespace pagetide {

// The mutators of a thread. Has no destructor itself, whose registration would allocate: a stop
// looks here.
struct Mutator::OfThread {
  // What is left of them when the thread ends keeps nobody waiting.
  struct AtEnd {
    ~AtEnd() { of_thread().leave_all(); }
  };

  Mutator* first = nullptr;

  void add(Mutator& mutator) {
    static thread_local const AtEnd at_end;
    (void)&at_end;
    mutator.next_of_thread_ = first;
    first = &mutator;
  }
  void remove(Mutator& mutator) {
    for (Mutator** link = &first; *link != nullptr; link = &(*link)->next_of_thread_) {
      if (*link != &mutator) continue;
      *link = mutator.next_of_thread_;
      return;
    }
  }
  void leave_all() {
    while (first != nullptr) {
      Mutator* mutator = std::exchange(first, first->next_of_thread_);
      if (mutator->away_depth_++ == 0) mutator->become_away();
    }
  }
};

Mutator::OfThread& Mutator::of_thread() {
  static constinit thread_local OfThread mutators;
  return mutators;
}

Mutator* Mutator::find_mine(const Safepoints& points) {
  Mutator* mutator = of_thread().first;
  while (mutator != nullptr && &mutator->points_ != &points) mutator = mutator->next_of_thread_;
  return mutator;
}

Mutator::Mutator(Safepoints& points, std::string_view name)
    : points_(points), first_([&] {
        Mutator* before = find_mine(points);
        return before != nullptr ? before : this;
      }()) {
  if (first_ != this) {
    kept_depth_ = first_->away_depth_;
    if (kept_depth_ > 0) {
      first_->away_depth_ = 0;
      first_->become_at_work();
    }
    return;
  }
  name.copy(name_.data(), name_.size() - 1);
  thread_id_ = ::gettid();
  of_thread().add(*this);
  {
    const RankedLock lock(points_.mutex_);
    next_ = points_.first_;
    if (next_ != nullptr) next_->previous_ = this;
    points_.first_ = this;
  }
  away_depth_ = 0;
  become_at_work();
}

Mutator::~Mutator() {
  if (first_ != this) {
    if (kept_depth_ > 0) {
      first_->become_away();
      first_->away_depth_ = kept_depth_;
    }
    return;
  }
  // A stop that is under way does not wait for this thread, but this thread for the stop.
  if (away_depth_ == 0) become_away();
  of_thread().remove(*this);
  const RankedLock lock(points_.mutex_);
  (previous_ != nullptr ? previous_->next_ : points_.first_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

void Mutator::leave() {
  if (first_->away_depth_++ == 0) first_->become_away();
}

void Mutator::enter() {
  if (--first_->away_depth_ == 0) first_->become_at_work();
}

void Mutator::wait_at_poll() {
  if (first_->away_depth_ > 0) return;
  first_->become_away();
  first_->become_at_work();
}

void Mutator::become_away() {
  state_.store(kAway, std::memory_order_seq_cst);
  if (points_.request_.load(std::memory_order_seq_cst) != 0) sys::futex_wake_all(state_);
}

void Mutator::become_at_work() {
  for (;;) {
    while (const std::uint32_t request = points_.request_.load(std::memory_order_seq_cst)) {
      sys::futex_wait(points_.request_, request);
    }
    state_.store(kAtWork, std::memory_order_seq_cst);
    if (points_.request_.load(std::memory_order_seq_cst) == 0) return;
    become_away();
  }
}

// --- stopping ---------------------------------------------------------------------------------

namespace {

sys::Deadline deadline_after(std::chrono::milliseconds limit) {
  // What is longer than a year is for ever, and would not fit.
  if (limit > std::chrono::hours(24 * 365)) return {};
  return std::chrono::steady_clock::now() + limit;
}

// As pthread_getname_np() would give it, but for a thread that may have ended by now.
std::string name_of_thread(pid_t thread) {
  const std::string path = fmt::format("/proc/self/task/{}/comm", thread);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 32> name{};
  if (!file.valid() || ::read(file.get(), name.data(), name.size() - 1) < 0) return {};
  const std::string_view text = name.data();
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace

// Who is late, in memory that was there before.
struct Safepoints::Late {
  struct Thread {
    pid_t id = 0;
    std::array<char, 32> name{};
  };
  std::array<Thread, 4> first{};
  std::size_t count = 0;
  std::size_t of = 0;

  std::string names() const {
    std::string text;
    for (std::size_t i = 0; i < std::min(count, first.size()); ++i) {
      const Thread& thread = first[i];
      const std::string name =
          thread.name[0] != '\0' ? thread.name.data() : name_of_thread(thread.id);
      text += fmt::format("{}'{}' (tid {})", i == 0 ? "" : ", ", name, thread.id);
    }
    if (count > first.size()) text += fmt::format(" and {} more", count - first.size());
    return text;
  }
};

Safepoints::Late Safepoints::find_late() const {
  Late late;
  for (const Mutator* each = first_; each != nullptr; each = each->next_) {
    ++late.of;
    if (!each->is_at_work()) continue;
    if (late.count < late.first.size()) late.first[late.count] = {each->thread_id_, each->name_};
    ++late.count;
  }
  return late;
}

Result<void> Safepoints::stop(std::chrono::milliseconds limit) {
  // Only this thread can have made it this value, and only it makes it another one.
  const void* const self = &Mutator::of_thread();
  if (stopped_by_.load(std::memory_order_relaxed) == self) {
    return failure(ErrorCode::busy,
                   "this thread has stopped the others already, and would wait for itself. Resume "
                   "them first, or take the snapshot with a snapshotter that does not stop them.");
  }
  // Not to be waited for by who has stopped the others now, nor by this stop.
  Mutator* const own = Mutator::find_mine(*this);
  if (own != nullptr) own->leave();
  mutex_.lock();
  last_request_ = std::max<std::uint32_t>(1, last_request_ + 1);
  request_.store(last_request_, std::memory_order_seq_cst);
  const sys::Deadline deadline = deadline_after(limit);
  bool in_time = true;
  for (const Mutator* each = first_; each != nullptr && in_time; each = each->next_) {
    while (each->is_at_work() && in_time) {
      in_time = sys::futex_wait(each->state_, Mutator::kAtWork, deadline);
    }
  }
  // Before they go on: afterwards nobody is late. There may be none any more, at the last moment.
  const Late late = in_time ? Late() : find_late();
  if (late.count == 0) {
    stopped_by_.store(self, std::memory_order_relaxed);
    // Whoever has stopped them may take a snapshot, which takes locks of lower ranks.
    mutex_.keep();
    return {};
  }
  let_go();
  mutex_.unlock();
  if (own != nullptr) own->enter();
  return failure(
      ErrorCode::timed_out,
      fmt::format("{} of {} threads did not come to a safepoint within {} ms: {}. Let them poll "
                  "more often, or be away while they block; all threads go on.",
                  late.count, late.of, limit.count(), late.names()));
}

void Safepoints::let_go() {
  request_.store(0, std::memory_order_seq_cst);
  sys::futex_wake_all(request_);
}

void Safepoints::resume() {
  let_go();
  stopped_by_.store(nullptr, std::memory_order_relaxed);
  mutex_.unlock_kept();
  if (Mutator* const own = Mutator::find_mine(*this)) own->enter();
}

std::size_t Safepoints::mutators() const {
  const RankedLock lock(mutex_);
  std::size_t count = 0;
  for (const Mutator* each = first_; each != nullptr; each = each->next_) ++count;
  return count;
}

}  // namespace pagetide
