#pragma once

// For one file of a test program: the sanitizers' own handlers would stand in for "the handler that
// was there before", and report faults that a test expects. Their libraries look for this function.
#if defined(__SANITIZE_ADDRESS__)
#define PAGETIDE_SANITIZER_OPTIONS __asan_default_options
#elif defined(__SANITIZE_THREAD__)
#define PAGETIDE_SANITIZER_OPTIONS __tsan_default_options
#endif
#if defined(PAGETIDE_SANITIZER_OPTIONS)
extern "C" __attribute__((visibility("default"))) const char* PAGETIDE_SANITIZER_OPTIONS();
extern "C" const char* PAGETIDE_SANITIZER_OPTIONS() {  // NOLINT
  return "handle_segv=0:handle_sigbus=0:allow_user_segv_handler=1"
#if defined(__SANITIZE_THREAD__)
         ":die_after_fork=0"  // forked children may start threads
#endif
      ;
}
#undef PAGETIDE_SANITIZER_OPTIONS
#endif
