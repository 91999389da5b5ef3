#pragma once

namespace pagetide::bench {

// Ends the worker with this message on standard error: what it would have reported is worth
// nothing. From any thread; allocates nothing, for the allocator may be what is broken.
[[noreturn]] void stop_worker(const char* why);

}  // namespace pagetide::bench
