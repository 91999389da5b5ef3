# Warnings and sanitizers, the same for every target of the project.
add_library(pagetide_options INTERFACE)
target_compile_options(pagetide_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
  -Wold-style-cast -Woverloaded-virtual -Wcast-align -Wnull-dereference -fno-omit-frame-pointer -momit-leaf-frame-pointer)
if(PAGETIDE_WERROR)
  target_compile_options(pagetide_options INTERFACE -Werror)
endif()
if(PAGETIDE_CHECK_LOCK_RANKS)
  target_compile_definitions(pagetide_options INTERFACE PAGETIDE_CHECK_LOCK_RANKS=1)
endif()
if(PAGETIDE_SANITIZER STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
elseif(PAGETIDE_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread)
  add_link_options(-fsanitize=thread)
elseif(NOT PAGETIDE_SANITIZER STREQUAL "")
  message(FATAL_ERROR "PAGETIDE_SANITIZER is '${PAGETIDE_SANITIZER}'; use address, thread or leave it empty")
endif()
# GCC 12 reports false positives of these two from inside libstdc++ and fmt once sanitizers
# change its inlining; the plain builds keep them.
if(NOT PAGETIDE_SANITIZER STREQUAL "" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(pagetide_options INTERFACE -Wno-null-dereference -Wno-maybe-uninitialized)
endif()
