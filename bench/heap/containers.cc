#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "bench/heap/random.h"
#include "bench/heap/source_allocator.h"
#include "bench/heap/stop_worker.h"
#include "bench/heap/workload.h"

namespace pagetide::bench {

namespace {

using Number = std::uint64_t;
using Entry = std::pair<const Number, Number>;
using TreeMap = std::map<Number, Number, std::less<>, SourceAllocator<Entry>>;
using HashMap =
    std::unordered_map<Number, Number, std::hash<Number>, std::equal_to<>, SourceAllocator<Entry>>;
using List = std::list<Number, SourceAllocator<Number>>;
using Deque = std::deque<Number, SourceAllocator<Number>>;
using String = std::basic_string<char, std::char_traits<char>, SourceAllocator<char>>;
using Strings = std::vector<String, SourceAllocator<String>>;

void expect(bool kept) {
  if (!kept) stop_worker("a container lost or changed what it held");
}

class Containers final : public Workload {
 public:
  explicit Containers(Scale scale) : count_(scale.of(50'000)) {}

  std::uint64_t run() override {
    use_map<TreeMap>();
    use_map<HashMap>();
    use_list();
    use_deque();
    use_strings();
    return 9 * count_;  // a map: 1.5, list 1, deque 4, strings 1
  }

 private:
  // Fills it, takes every other key out, and puts new ones in.
  template <typename Map>
  void use_map() {
    Map map;
    Number sum = 0;
    for (std::size_t i = 0; i < count_; ++i) map.emplace(scrambled(i), i);
    for (std::size_t i = 0; i < count_; i += 2) expect(map.erase(scrambled(i)) == 1);
    for (std::size_t i = 0; i < count_; i += 2) map.emplace(scrambled(count_ + i), i);
    for (const auto& [key, value] : map) sum += value;
    expect(sum == count_ * (count_ - 1) / 2);
  }

  void use_list() {
    List list;
    for (std::size_t i = 0; i < count_; ++i) list.insert(i % 2 == 0 ? list.begin() : list.end(), i);
    list.remove_if([](Number number) { return number % 3 == 0; });
    expect(list.size() == count_ - (count_ + 2) / 3);
  }

  // As a queue: it moves through memory.
  void use_deque() {
    Deque deque;
    Number sum = 0;
    for (std::size_t i = 0; i < 4 * count_; ++i) {
      deque.push_back(i);
      if (deque.size() <= 1000) continue;
      sum += deque.front();
      deque.pop_front();
    }
    for (const Number number : deque) sum += number;
    expect(sum == 4 * count_ * (4 * count_ - 1) / 2);
  }

  // Most are too long for what a string holds in itself.
  void use_strings() {
    Strings strings;
    std::size_t characters = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const std::size_t length = random_.between(4, 80);
      strings.emplace_back(length, static_cast<char>('a' + i % 26));
      characters += length;
    }
    std::sort(strings.begin(), strings.end());
    for (const String& string : strings) characters -= string.size();
    expect(characters == 0);
  }

  // Another number for each, in no order.
  static Number scrambled(std::size_t i) { return i * 0x9e3779b97f4a7c15ULL; }

  std::size_t count_;
  Random random_{1};
};

}  // namespace

std::unique_ptr<Workload> make_containers(Scale scale) {
  return std::make_unique<Containers>(scale);
}

}  // namespace pagetide::bench
