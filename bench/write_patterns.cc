#include "bench/write_patterns.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pagetide::bench {

namespace {

bool is_contiguous(Pattern pattern) {
  return pattern == Pattern::hot_contiguous || pattern == Pattern::mixed_contiguous;
}

}  // namespace

std::string_view to_string(Pattern pattern) {
  switch (pattern) {
    case Pattern::uniform:
      return "uniform";
    case Pattern::zipf:
      return "zipf";
    case Pattern::hot_scattered:
      return "hot_scattered";
    case Pattern::hot_contiguous:
      return "hot_contiguous";
    case Pattern::mixed_scattered:
      return "mixed_scattered";
    case Pattern::mixed_contiguous:
      return "mixed_contiguous";
    case Pattern::sequential:
      return "sequential";
  }
  return "?";
}

WriteSequence::WriteSequence(Pattern pattern, std::size_t page_count)
    : pattern_(pattern), page_count_(page_count) {
  std::vector<std::uint32_t> all(page_count);
  std::iota(all.begin(), all.end(), 0U);
  if (!is_contiguous(pattern)) std::shuffle(all.begin(), all.end(), random_);
  // Neither at the edge of the memory nor on that of a block, where it is contiguous.
  const std::size_t first = is_contiguous(pattern) ? page_count / 3 : 0;
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
  hot_.assign(begin, begin + static_cast<std::ptrdiff_t>(page_count / 20));
  double sum = 0;
  for (std::size_t rank = 1; rank <= hot_.size(); ++rank) {
    sum += 1 / std::pow(static_cast<double>(rank), 0.99);
    cumulated_weights_.push_back(sum);
  }
}

std::span<const std::uint32_t> WriteSequence::next(std::size_t count) {
  pages_.resize(count);
  for (std::uint32_t& page : pages_) page = next_page();
  return pages_;
}

std::uint32_t WriteSequence::next_page() {
  constexpr std::size_t kWritesAPage = 16;
  switch (pattern_) {
    case Pattern::uniform:
      return uniform_page();
    case Pattern::zipf:
      return zipf_page();
    case Pattern::hot_scattered:
    case Pattern::hot_contiguous:
      return hot_page();
    case Pattern::mixed_scattered:
    case Pattern::mixed_contiguous:
      return random_() % 10 == 0 ? uniform_page() : hot_page();
    case Pattern::sequential:
      return static_cast<std::uint32_t>(written_++ / kWritesAPage % page_count_);
  }
  return 0;
}

std::uint32_t WriteSequence::uniform_page() {
  return static_cast<std::uint32_t>(random_() % page_count_);
}

std::uint32_t WriteSequence::hot_page() {
  return hot_[random_() % hot_.size()];
}

std::uint32_t WriteSequence::zipf_page() {
  std::uniform_real_distribution<double> share(0, cumulated_weights_.back());
  const auto found =
      std::upper_bound(cumulated_weights_.begin(), cumulated_weights_.end(), share(random_));
  const auto rank = static_cast<std::size_t>(found - cumulated_weights_.begin());
  return hot_[std::min(rank, hot_.size() - 1)];
}

}  // namespace pagetide::bench
