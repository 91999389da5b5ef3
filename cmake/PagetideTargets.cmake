# pagetide_layer(NAME SOURCES ... DEPENDS ...): one library target a layer. The layers are object
# libraries, so that libpagetide.so and libpagetide.a are made of the same objects and tests can
# reach what the shared library hides.
function(pagetide_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_library(pagetide_${name} OBJECT ${ARG_SOURCES})
  target_include_directories(pagetide_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(pagetide_${name} PUBLIC tl::expected ${ARG_LIBRARIES} PRIVATE $<BUILD_INTERFACE:pagetide_options>)
  foreach(dependency IN LISTS ARG_DEPENDS)
    # Object libraries do not pass objects on through other object libraries; usage only.
    target_link_libraries(pagetide_${name} PUBLIC pagetide_${dependency})
  endforeach()
endfunction()

# pagetide_test(NAME SOURCES ... [LABEL ...] [TIMEOUT s] [ARGS ...]): one GoogleTest program, each
# of its tests a CTest test.
function(pagetide_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS;DEFINITIONS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE pagetide_options pagetide_test_support pagetide_static_internal
    GTest::gmock GTest::gtest GTest::gtest_main ${ARG_LIBRARIES})
  # Line numbers for backtraces are enough in a test, and take a third less time to compile.
  target_compile_options(${name} PRIVATE -g1)
  target_compile_definitions(${name} PRIVATE
    PAGETIDE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" PAGETIDE_BINARY_DIR="${PROJECT_BINARY_DIR}" ${ARG_DEFINITIONS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  # gtest_discover_tests splits lists, so several labels travel as one word.
  list(JOIN ARG_LABELS "," labels)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${labels}")
endfunction()

# pagetide_bench(NAME SOURCES ...): one Google Benchmark program in build/<preset>/bench.
function(pagetide_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE pagetide_options pagetide_static_internal benchmark::benchmark ${ARG_LIBRARIES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
endfunction()
