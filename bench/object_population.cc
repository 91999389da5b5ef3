#include "bench/object_population.h"

#include <cstring>
#include <utility>

namespace pagetide::bench {

bool ObjectPopulation::make(void*& object) {
  const std::size_t bytes = 16 + random_() % 241;
  object = arena_.allocate(bytes).value_or(nullptr);
  if (object != nullptr) std::memset(object, 0x5a, bytes);
  return object != nullptr;
}

bool ObjectPopulation::replace(std::size_t count) {
  bool complete = true;
  for (std::size_t i = 0; i < count; ++i) {
    void*& object = objects_[random_() % objects_.size()];
    arena_.deallocate(object);
    complete = make(object) && complete;
  }
  return complete;
}

void ObjectPopulation::free_each(std::size_t step, std::size_t remainder) {
  for (std::size_t i = remainder; i < objects_.size(); i += step) {
    arena_.deallocate(std::exchange(objects_[i], nullptr));
  }
}

bool ObjectPopulation::fill() {
  bool complete = true;
  for (void*& object : objects_) {
    if (object == nullptr) complete = make(object) && complete;
  }
  return complete;
}

}  // namespace pagetide::bench
