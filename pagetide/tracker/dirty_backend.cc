#include "pagetide/tracker/dirty_backend.h"

namespace pagetide {

std::string_view to_string(Prefill policy) {
  switch (policy) {
    case Prefill::automatic:
      return "auto";
    case Prefill::zero_page:
      return "zero_page";
    case Prefill::marker:
      return "marker";
    case Prefill::none:
      return "none";
  }
  return "unknown";
}

std::string_view to_string(BackendKind kind) {
  switch (kind) {
    case BackendKind::automatic:
      return "auto";
    case BackendKind::uffd_async:
      return "uffd_async";
    case BackendKind::uffd_sigbus:
      return "uffd_sigbus";
    case BackendKind::uffd_sync:
      return "uffd_sync";
    case BackendKind::soft_dirty:
      return "soft_dirty";
    case BackendKind::write_protect:
      return "mprotect";
    case BackendKind::compare:
      return "compare";
  }
  return "unknown";
}

}  // namespace pagetide
