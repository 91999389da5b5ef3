// Containers with pagetide::allocator that live in an arena, over several processes: each run opens
// them from the newest snapshot and uses them on. Prints what they hold, where their arena is, and
// what is wrong.
//
//   reopened_containers STORE grow|empty

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pagetide/pagetide.hpp"

namespace {

using namespace pagetide::literals;

template <typename T>
using Vector = std::vector<T, pagetide::allocator<T>>;
using String = std::basic_string<char, std::char_traits<char>, pagetide::allocator<char>>;
using Map = std::map<String, Vector<int>, std::less<>,
                     pagetide::allocator<std::pair<const String, Vector<int>>>>;
using Table = std::unordered_map<int, String, std::hash<int>, std::equal_to<>,
                                 pagetide::allocator<std::pair<const int, String>>>;

constexpr int kStep = 1000;  // numbers that a run adds

struct Containers {
  explicit Containers(pagetide::Arena& arena) : numbers(arena), lists(arena), texts(arena) {}
  Vector<int> numbers;
  Map lists;  // of the numbers, by their last digit in words
  Table texts;
};

std::string digit_of(int number) {
  return "numbers that end with the digit " + std::to_string(number % 10);
}

pagetide::Arena open_arena(pagetide::Store& store) {
  auto latest = store.latest();
  if (latest) return store.open_arena(*latest).value();
  return pagetide::Arena::create({.name = "containers", .reserve_bytes = 256_MiB}).value();
}

void grow(Containers& containers) {
  const int from = static_cast<int>(containers.numbers.size());
  for (int number = from; number < from + kStep; ++number) {
    containers.numbers.push_back(number);
    containers.lists[String(digit_of(number), containers.lists.get_allocator())].push_back(number);
    containers.texts.try_emplace(number, digit_of(number));
    if (number % 3 == 0) containers.texts.erase(number / 3);
  }
}

// Why the containers are not what the runs so far made of them; "" when they are.
std::string problem_of(const Containers& containers, const pagetide::Arena& arena) {
  const auto count = static_cast<int>(containers.numbers.size());
  if (count % kStep != 0) return "numbers are missing";
  if (containers.numbers.get_allocator().resource() != arena.resource()) return "another resource";
  if (!containers.numbers.empty() && !arena.heap().owns(containers.numbers.data())) {
    return "the numbers are outside the arena";
  }
  std::size_t in_lists = 0;
  for (const auto& [name, list] : containers.lists) {
    for (const int number : list) {
      if (name != std::string_view(digit_of(number))) return "a list holds another's number";
    }
    if (!arena.heap().owns(list.data())) return "a list is outside the arena";
    in_lists += list.size();
  }
  if (in_lists != containers.numbers.size()) return "lists and numbers differ";
  for (int number = 0; number < count; ++number) {
    if (containers.numbers[static_cast<std::size_t>(number)] != number) return "a wrong number";
    const bool is_erased = number * 3 < count;
    const auto text = containers.texts.find(number);
    if ((text == containers.texts.end()) != is_erased) return "a text too many or missing";
    if (!is_erased && text->second != std::string_view(digit_of(number))) return "a wrong text";
  }
  return {};
}

// Memory of all small sizes, `count` blocks of each: what is allocated next is elsewhere than in a
// run with another count, also where the system does not randomise addresses.
std::vector<std::vector<char>> shift_heap(std::size_t count) {
  std::vector<std::vector<char>> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t bytes = 16; bytes <= 512; bytes += 16) blocks.emplace_back(bytes);
  }
  return blocks;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  auto store = pagetide::Store::open(argv[1]).value();
  const auto latest = store.latest();
  const auto shift = shift_heap(latest ? 20 + latest->value : 20);
  pagetide::Arena arena = open_arena(store);
  Containers& containers = *arena.find_or_construct<Containers>("containers", arena).value();
  std::string problem = problem_of(containers, arena);
  if (problem.empty() && std::strcmp(argv[2], "grow") == 0) {
    grow(containers);
    problem = problem_of(containers, arena);
    std::printf("%zu numbers\n", containers.numbers.size());
  } else if (problem.empty()) {
    (void)arena.destroy_root<Containers>("containers");
  }
  const pagetide::HeapStats stats = arena.heap().check().value();
  std::printf("resource %p\nheap %p\nlive blocks %lu\n", static_cast<void*>(arena.resource()),
              static_cast<void*>(&arena.heap()), stats.live_blocks);
  if (!problem.empty()) std::printf("problem: %s\n", problem.c_str());
  pagetide::Snapshotter(arena, store).take().value();
  return problem.empty() ? 0 : 1;
} catch (const tl::bad_expected_access<pagetide::Error>& failed) {
  std::fprintf(stderr, "%s\n", failed.error().message().c_str());
  return 1;
}
