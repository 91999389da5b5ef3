#pragma once

// What the numbers of tracker_c.h stand for. For the library's own *_c.cc files.

#include <array>
#include <cstddef>

#include "pagetide/base/c_numbers.h"
#include "pagetide/tracker/prefill.h"
#include "pagetide/tracker/tracker.h"
#include "pagetide/tracker/tracker_c.h"

namespace pagetide::c_api {

inline constexpr std::array<Meaning<BackendKind>, 7> kBackends = {{
    {PAGETIDE_BACKEND_AUTO, BackendKind::automatic},
    {PAGETIDE_BACKEND_UFFD_ASYNC, BackendKind::uffd_async},
    {PAGETIDE_BACKEND_UFFD_SIGBUS, BackendKind::uffd_sigbus},
    {PAGETIDE_BACKEND_UFFD_SYNC, BackendKind::uffd_sync},
    {PAGETIDE_BACKEND_SOFT_DIRTY, BackendKind::soft_dirty},
    {PAGETIDE_BACKEND_MPROTECT, BackendKind::write_protect},
    {PAGETIDE_BACKEND_COMPARE, BackendKind::compare},
}};
static_assert(kBackends.size() == static_cast<std::size_t>(BackendKind::compare) + 1);

inline constexpr std::array<Meaning<Prefill>, 4> kPrefills = {{
    {PAGETIDE_PREFILL_AUTO, Prefill::automatic},
    {PAGETIDE_PREFILL_ZERO_PAGE, Prefill::zero_page},
    {PAGETIDE_PREFILL_MARKER, Prefill::marker},
    {PAGETIDE_PREFILL_NONE, Prefill::none},
}};
static_assert(kPrefills.size() == static_cast<std::size_t>(Prefill::none) + 1);

inline constexpr std::array<Meaning<CollectMode>, 2> kCollectModes = {{
    {PAGETIDE_TAKE, CollectMode::take},
    {PAGETIDE_PEEK, CollectMode::peek},
}};

inline constexpr std::array<Meaning<DirtyBitmap Collected::*>, 2> kPageSets = {{
    {PAGETIDE_WRITTEN, &Collected::written},
    {PAGETIDE_ZEROED, &Collected::zeroed},
}};

}  // namespace pagetide::c_api
