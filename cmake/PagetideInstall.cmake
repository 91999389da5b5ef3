include(CMakePackageConfigHelpers)
install(TARGETS pagetide_shared pagetide_static pagetide_headers pagetide_cli
  EXPORT pagetide-targets
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/pagetide DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT pagetide-targets NAMESPACE pagetide:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/pagetide)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/pagetide-config.cmake.in
  ${PROJECT_BINARY_DIR}/pagetide-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/pagetide)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/pagetide-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/pagetide-config.cmake ${PROJECT_BINARY_DIR}/pagetide-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/pagetide)
configure_file(${PROJECT_SOURCE_DIR}/cmake/pagetide.pc.in ${PROJECT_BINARY_DIR}/pagetide.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/pagetide.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")
