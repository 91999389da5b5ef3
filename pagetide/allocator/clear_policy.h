#pragma once

#include <cstdint>

namespace pagetide {

// What becomes of the bytes of a block that is freed; docs/clearing.md has more.
enum class ClearPolicy : std::uint8_t {
  // Cleared at once when its page is dirty already in this epoch, else before it is handed out
  // again, so that a free dirties no page. Every block is handed out zero, and free bytes are zero
  // in every snapshot.
  deferred,
  on_free,  // cleared at once, outside locks: no secret outlives its object
  never,    // left as they are until they are overwritten
};

}  // namespace pagetide
