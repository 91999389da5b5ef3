#include <array>
#include <cstddef>
#include <memory>

#include "pagetide/allocator/arena_c_handle.h"
#include "pagetide/base/c_border.h"
#include "pagetide/base/c_numbers.h"
#include "pagetide/base/c_structs.h"
#include "pagetide/tracker/tracker_c_numbers.h"

// The part of the C API that knows the options of arenas.

namespace pagetide::c_api {

namespace {

constexpr std::array<Meaning<ClearPolicy>, 3> kClearPolicies = {{
    {PAGETIDE_CLEAR_DEFERRED, ClearPolicy::deferred},
    {PAGETIDE_CLEAR_ON_FREE, ClearPolicy::on_free},
    {PAGETIDE_CLEAR_NEVER, ClearPolicy::never},
}};
static_assert(kClearPolicies.size() == static_cast<std::size_t>(ClearPolicy::never) + 1);

constexpr const char* kDefaultName = "arena";

pagetide_arena_options default_arena_options() {
  const ArenaOptions options;
  return {sizeof(pagetide_arena_options),
          kDefaultName,
          options.reserve_bytes,
          options.base,
          number_of(options.clear, kClearPolicies),
          number_of(options.prefill, kPrefills),
          number_of(options.backend, kBackends),
          options.hot_pages.enabled ? 1 : 0,
          options.hot_pages.stale_page_ns,
          options.hot_pages.fault_ns,
          options.hot_pages.ioctl_ns,
          options.hot_pages.relearn_takes,
          0,
          0,
          options.slack_percent,
          options.on_corruption.report,
          options.on_corruption.context};
}

}  // namespace

Result<KnownArenaOptions> arena_options(const pagetide_arena_options* given) {
  if (given == nullptr) return KnownArenaOptions{};
  auto known = known_options(*given, default_arena_options(), "pagetide_arena_options", "arena");
  if (!known) return propagate(known);
  auto clear = meaning_of(known->clear, kClearPolicies, "pagetide_clear_policy");
  if (!clear) return propagate(clear);
  auto prefill = meaning_of(known->prefill, kPrefills, "pagetide_prefill");
  if (!prefill) return propagate(prefill);
  auto backend = meaning_of(known->backend, kBackends, "pagetide_backend");
  if (!backend) return propagate(backend);
  return KnownArenaOptions{.arena = {.name = known->name != nullptr ? known->name : kDefaultName,
                                     .reserve_bytes = known->reserve_bytes,
                                     .base = known->base,
                                     .clear = *clear,
                                     .prefill = *prefill,
                                     .backend = *backend,
                                     .hot_pages = {.enabled = known->adapt_to_hot_pages != 0,
                                                   .stale_page_ns = known->hot_stale_page_ns,
                                                   .fault_ns = known->hot_fault_ns,
                                                   .ioctl_ns = known->hot_ioctl_ns,
                                                   .relearn_takes = known->hot_relearn_takes},
                                     .on_corruption = {.report = known->on_corruption,
                                                       .context = known->corruption_context},
                                     .slack_percent = known->slack_percent},
                           .holds_code_addresses = known->holds_code_addresses != 0,
                           .ignore_program_identity = known->ignore_program_identity != 0};
}

pagetide_arena* new_handle(Arena arena, const KnownArenaOptions& options) {
  auto handle = std::make_unique<pagetide_arena>(std::move(arena));
  if (options.holds_code_addresses) handle->arena.set_holds_code_addresses();
  return handle.release();
}

}  // namespace pagetide::c_api

int pagetide_arena_options_init(pagetide_arena_options* options, size_t size) {
  using namespace pagetide::c_api;
  return at_border({{options, "options"}}, [&] {
    return set_defaults(options, size, default_arena_options(), "pagetide_arena_options");
  });
}
