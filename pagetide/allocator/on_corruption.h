#pragma once

namespace pagetide {

// What happens when a program frees or reallocates what is not allocated: an address outside the
// arena, in the middle of a block, or of a block that was freed already.
struct OnCorruption {
  // Null, the default: the process writes the message to standard error and aborts. Else this is
  // called, by the thread that frees and before anything was changed; the free is ignored, a
  // reallocation returns nullptr, and the heap is as usable as it was. It may use the arena; it
  // must return and must not throw. `message` says the same as the one of the abort and is good
  // until it returns: "heap corruption: double free of 0x550000831000".
  //
  // Some double frees are found later, when what two threads have freed comes together. Until then
  // the slot may have been counted twice: these abort in any case.
  void (*report)(const char* message, const void* block, void* context) = nullptr;
  void* context = nullptr;
};

}  // namespace pagetide
