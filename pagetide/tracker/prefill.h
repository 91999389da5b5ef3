#pragma once

#include <cstdint>
#include <string_view>

#include "pagetide/base/export.h"

namespace pagetide {

// How untouched memory is prepared for tracking when it is handed out. Correct with every back
// end; what one cannot do it leaves out.
enum class Prefill : std::uint8_t {
  // What is cheapest over the first writes: zero_page where the back end arms by page.
  automatic,
  // Zero-page entries, armed, in steps: reads never fault, a first write is one fault, and
  // "written" is exact over all that was handed out. About 0.2 us a page.
  zero_page,
  // Write-protect markers: no memory, an eighth of the cost, but the first touch is two faults.
  marker,
  // Nothing: the first touch is an ordinary page fault. Cheapest; just as exact for populated
  // pages, but a page that was only read counts as written.
  none,
};

PAGETIDE_API std::string_view to_string(Prefill policy);

}  // namespace pagetide
