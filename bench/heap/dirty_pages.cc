#include "bench/heap/dirty_pages.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

#include "bench/heap/own_table.h"
#include "bench/heap/process_facts.h"
#include "bench/heap/process_pages.h"
#include "bench/heap/random.h"
#include "bench/heap/tagged_block.h"
#include "pagetide/allocator/heap_change_log.h"
#include "pagetide/snapshot/heap_record.h"

namespace pagetide::bench {

namespace {

constexpr int kFirstEpochs = 100;
constexpr int kEpochs = 5;

class Objects {
 public:
  explicit Objects(std::size_t count) : blocks_(count) {
    for (TaggedBlock& block : blocks_) block = make();
  }
  ~Objects() {
    for (TaggedBlock& block : blocks_) release(block);
  }
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;

  void change(const DirtyPhase& phase) {
    for (std::size_t i = 0; i < phase.replaced; ++i) {
      TaggedBlock& block = any();
      release(block);
      block = make();
    }
    for (std::size_t i = 0; i < phase.updated; ++i) {
      TaggedBlock& block = any();
      block.tag = random_.tag();
      stamp(block);
    }
  }

 private:
  TaggedBlock& any() { return blocks_[random_.below(blocks_.size())]; }
  TaggedBlock make() {
    const std::size_t bytes = random_.between(16, 256);
    TaggedBlock block = make_block(bytes, random_.tag());
    std::memset(block.data(), 0x5a, bytes);
    stamp(block);
    return block;
  }

  Random random_{1};
  OwnTable<TaggedBlock> blocks_;
};

// The two ways to count, as one.
class Epochs {
 public:
  static Result<std::unique_ptr<Epochs>> open(OpenSource& heap) {
    Arena* const arena = heap.arena();
    auto pages =
        ProcessPages::open(heap.shared_memory(), arena != nullptr ? arena->range() : ByteRange{});
    if (!pages) return propagate(pages);
    auto epochs = std::unique_ptr<Epochs>(new Epochs(arena, std::move(*pages)));
    if (arena != nullptr) arena->tracker().reserve(arena->region().watch(), epochs->collected_);
    return epochs;
  }

  Result<void> begin() {
    if (auto r = pages_->arm(); !r) return r;
    return take();
  }

  // The process's pages first: a take writes to the tracker's own tables.
  struct Counts {
    std::size_t written = 0;
    std::size_t ranges = 0;
    std::size_t written_outside = 0;
    std::size_t populated = 0;
  };
  Result<Counts> end() {
    const auto pages = pages_->count();
    if (!pages) return tl::unexpected<Error>(pages.error());
    Counts counts{pages->written, 0, 0, pages->populated};
    if (arena_ == nullptr) return counts;
    if (auto r = take(); !r) return propagate(r);
    counts.written_outside = counts.written;
    counts.written = collected_.written.count() + divide_up(record_bytes_, page_size());
    collected_.written.for_each_run([&](PageRange) { ++counts.ranges; });
    return counts;
  }

 private:
  Epochs(Arena* arena, std::unique_ptr<ProcessPages> pages)
      : arena_(arena), pages_(std::move(pages)) {}

  Result<void> take() {
    if (arena_ == nullptr) return {};
    measure_record();
    auto r =
        arena_->tracker().collect_into(arena_->region().watch(), CollectMode::take, collected_);
    if (r && collected_.poisoned) return failure(ErrorCode::system_failure, collected_.cause);
    return r;
  }

  // At most: a snapshot stores of a line only the words that differ.
  void measure_record() {
    constexpr std::size_t kNumberBytes = 2;  // gaps between numbers; most are smaller
    record_bytes_ = sizeof(format::HeapRecordHeader) + sizeof(std::uint64_t);
    arena_->heap().settle();
    arena_->heap().changes().for_each([&](std::size_t, std::uint8_t lines, bool entry) {
      const auto count = static_cast<std::size_t>(std::popcount(lines));
      record_bytes_ += count * (kNumberBytes + 1 + sizeof(format::BitmapLine));
      record_bytes_ += entry ? kNumberBytes + sizeof(layout::SpanEntry) : 0;
    });
    arena_->heap().changes().clear();
  }

  Arena* arena_;
  std::unique_ptr<ProcessPages> pages_;
  Collected collected_;
  std::size_t record_bytes_ = 0;
};

template <typename T>
T middle_of(std::array<T, kEpochs> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[kEpochs / 2];
}

Result<DirtyCounts> measure(Objects& objects, Epochs& epochs, const DirtyPhase& phase) {
  using Clock = std::chrono::steady_clock;
  std::array<double, kEpochs> seconds{};
  std::array<std::size_t, kEpochs> written{};
  std::array<std::size_t, kEpochs> ranges{};
  std::array<std::size_t, kEpochs> outside{};
  std::array<std::size_t, kEpochs> populated{};
  for (int epoch = -kFirstEpochs; epoch < kEpochs; ++epoch) {
    if (auto r = epochs.begin(); !r) return propagate(r);
    const Clock::time_point start = Clock::now();
    objects.change(phase);
    const double taken = std::chrono::duration<double>(Clock::now() - start).count();
    const auto counts = epochs.end();
    if (!counts) return tl::unexpected<Error>(counts.error());
    if (epoch < 0) continue;
    const auto i = static_cast<std::size_t>(epoch);
    seconds[i] = taken;
    written[i] = counts->written;
    ranges[i] = counts->ranges;
    outside[i] = counts->written_outside;
    populated[i] = counts->populated;
  }
  return DirtyCounts{phase,
                     middle_of(seconds),
                     static_cast<double>(middle_of(written)),
                     static_cast<double>(middle_of(ranges)),
                     static_cast<double>(middle_of(outside)),
                     static_cast<double>(middle_of(populated)),
                     0};
}

}  // namespace

Result<std::vector<DirtyCounts>> measure_dirty_pages(OpenSource& heap, Scale scale) {
  constexpr std::size_t kObjects = 1'000'000;
  Objects objects(scale.of(kObjects));
  auto epochs = Epochs::open(heap);
  if (!epochs) return propagate(epochs);
  std::vector<DirtyCounts> all;
  const std::size_t updated = scale.of(kObjects / 100);
  const std::size_t few = scale.of(10'000);
  const std::size_t many = scale.of(50'000);
  for (const DirtyPhase& phase :
       {DirtyPhase{few, 0}, DirtyPhase{few, updated}, DirtyPhase{0, updated}, DirtyPhase{many, 0},
        DirtyPhase{many, updated}}) {
    auto counts = measure(objects, **epochs, phase);
    if (!counts) return propagate(counts);
    counts->rss_kib = resident_kib();
    all.push_back(*counts);
  }
  return all;
}

}  // namespace pagetide::bench
