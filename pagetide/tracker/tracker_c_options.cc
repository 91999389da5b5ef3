#include "pagetide/tracker/tracker_c_options.h"

#include "pagetide/base/c_numbers.h"
#include "pagetide/base/c_structs.h"
#include "pagetide/tracker/tracker_c_numbers.h"

namespace pagetide::c_api {

pagetide_tracker_options default_tracker_options() {
  const TrackerOptions options;
  return {sizeof(pagetide_tracker_options),     PAGETIDE_BACKEND_AUTO,
          options.never_syscall_target ? 1 : 0, options.writers_held_in_takes ? 1 : 0,
          options.hot_pages.enabled ? 1 : 0,    options.hot_pages.stale_page_ns,
          options.hot_pages.fault_ns,           options.hot_pages.ioctl_ns,
          options.hot_pages.relearn_takes,      options.settings.handler_threads,
          options.settings.max_extra_mappings};
}

Result<TrackerOptions> tracker_options(const pagetide_tracker_options* given) {
  if (given == nullptr) return TrackerOptions{};
  auto known =
      known_options(*given, default_tracker_options(), "pagetide_tracker_options", "tracker");
  if (!known) return propagate(known);
  auto backend = meaning_of(known->backend, kBackends, "pagetide_backend");
  if (!backend) return propagate(backend);
  // For every back end, so that the mistake does not wait for a machine where AUTO takes uffd_sync.
  if (known->sync_handler_threads == 0) {
    return failure(ErrorCode::invalid_argument,
                   "the option sync_handler_threads must be at least 1; "
                   "pagetide_tracker_options_init() sets it to 1.");
  }
  return TrackerOptions{.backend = *backend,
                        .never_syscall_target = known->never_syscall_target != 0,
                        .writers_held_in_takes = known->writers_held_in_takes != 0,
                        .hot_pages = {.enabled = known->adapt_to_hot_pages != 0,
                                      .stale_page_ns = known->hot_stale_page_ns,
                                      .fault_ns = known->hot_fault_ns,
                                      .ioctl_ns = known->hot_ioctl_ns,
                                      .relearn_takes = known->hot_relearn_takes},
                        .settings = {.handler_threads = known->sync_handler_threads,
                                     .max_extra_mappings = known->mprotect_max_extra_mappings}};
}

}  // namespace pagetide::c_api
