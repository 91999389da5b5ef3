include(CMakePackageConfigHelpers)
install(TARGETS pagetide_shared pagetide_static pagetide_headers pagetide_cli
  EXPORT pagetide-targets
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# Public headers; what only the library itself includes stays at home.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/pagetide DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp"
  PATTERN "base/c_border.h" EXCLUDE
  PATTERN "base/c_numbers.h" EXCLUDE
  PATTERN "base/c_structs.h" EXCLUDE
  PATTERN "base/fatal.h" EXCLUDE
  PATTERN "base/futex.h" EXCLUDE
  PATTERN "base/hash.h" EXCLUDE
  PATTERN "base/syscalls.h" EXCLUDE
  PATTERN "base/unique_fd.h" EXCLUDE
  PATTERN "base/virtual_array.h" EXCLUDE
  PATTERN "tracker/backends" EXCLUDE
  PATTERN "tracker/kernel" EXCLUDE
  PATTERN "tracker/disabled_features.h" EXCLUDE
  PATTERN "tracker/hot_pages.h" EXCLUDE
  PATTERN "tracker/page_bits.h" EXCLUDE
  PATTERN "tracker/tracker_c_handles.h" EXCLUDE
  PATTERN "tracker/tracker_c_numbers.h" EXCLUDE
  PATTERN "tracker/tracker_c_options.h" EXCLUDE
  PATTERN "tracker/watched_range.h" EXCLUDE
  PATTERN "tracker/word_masks.h" EXCLUDE
  PATTERN "allocator/arena_c_handle.h" EXCLUDE
  PATTERN "allocator/arena_resource.h" EXCLUDE
  PATTERN "allocator/safepoints_c_handle.h" EXCLUDE
  PATTERN "allocator/span_supply.h" EXCLUDE
  PATTERN "allocator/free_mask.h" EXCLUDE
  PATTERN "allocator/heap_change_log.h" EXCLUDE
  PATTERN "allocator/fork_repair.h" EXCLUDE
  PATTERN "allocator/heap_activity.h" EXCLUDE
  PATTERN "allocator/heap_impl.h" EXCLUDE
  PATTERN "allocator/heap_race_points.h" EXCLUDE
  PATTERN "allocator/heap_tables.h" EXCLUDE
  PATTERN "allocator/run_zeroing.h" EXCLUDE
  PATTERN "allocator/thread_heap.h" EXCLUDE
  PATTERN "allocator/thread_heaps.h" EXCLUDE
  PATTERN "allocator/clear/clear_plan.h" EXCLUDE
  PATTERN "allocator/clear/kernel_functions.h" EXCLUDE
  PATTERN "allocator/clear/slot_kernels.h" EXCLUDE
  PATTERN "snapshot/draft.h" EXCLUDE
  PATTERN "snapshot/format.h" EXCLUDE
  PATTERN "snapshot/freed_pages.h" EXCLUDE
  PATTERN "snapshot/heap_draft.h" EXCLUDE
  PATTERN "snapshot/heap_record.h" EXCLUDE
  PATTERN "snapshot/heap_state.h" EXCLUDE
  PATTERN "snapshot/page_capture.h" EXCLUDE
  PATTERN "snapshot/kept_memory.h" EXCLUDE
  PATTERN "snapshot/page_copies.h" EXCLUDE
  PATTERN "snapshot/page_map.h" EXCLUDE
  PATTERN "snapshot/segment.h" EXCLUDE
  PATTERN "snapshot/snapshotter_impl.h" EXCLUDE
  PATTERN "snapshot/staging.h" EXCLUDE
  PATTERN "snapshot/stop.h" EXCLUDE
  PATTERN "snapshot/store_c_handle.h" EXCLUDE
  PATTERN "snapshot/store_impl.h" EXCLUDE)
install(EXPORT pagetide-targets NAMESPACE pagetide:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/pagetide)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/pagetide-config.cmake.in
  ${PROJECT_BINARY_DIR}/pagetide-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/pagetide)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/pagetide-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/pagetide-config.cmake ${PROJECT_BINARY_DIR}/pagetide-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/pagetide)
# The file finds its prefix from where it lies, so that `cmake --install --prefix` may name another.
file(RELATIVE_PATH PAGETIDE_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/pagetide.pc.in ${PROJECT_BINARY_DIR}/pagetide.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/pagetide.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
foreach(section 1 3)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/man/
    DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} FILES_MATCHING PATTERN "*.${section}")
endforeach()
