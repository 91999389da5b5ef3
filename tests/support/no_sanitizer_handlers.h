#pragma once

// For one file of a test program.
// The sanitizers' own handlers would stand in for "the handler that was there before".
#if defined(__SANITIZE_ADDRESS__)
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {  // NOLINT
  return "handle_segv=0:handle_sigbus=0:allow_user_segv_handler=1";
}
#elif defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() {  // NOLINT
  return "handle_segv=0:handle_sigbus=0:allow_user_segv_handler=1";
}
#endif
