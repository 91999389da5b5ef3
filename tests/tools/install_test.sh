#!/usr/bin/env bash
# Installs the build into a scratch prefix and builds the README's program against it, once with
# pkg-config and once with find_package, and other programs in C and C++: what is installed must be
# all that is needed.
# usage: install_test.sh BUILD_DIR SOURCE_DIR CXX
set -euo pipefail
build=$1 source=$2 cxx=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix

cmake --install "$build" --prefix "$prefix" >"$scratch/install.log"
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name pagetide.pc)")
library=$(dirname "$(find "$prefix" -name libpagetide.so)")

echo "with pkg-config"
# shellcheck disable=SC2046
"$cxx" -std=c++20 "$source/examples/first_program.cc" -o "$scratch/with_pkg_config" \
  $(pkg-config --cflags --libs pagetide)
(cd "$scratch" && LD_LIBRARY_PATH=$library ./with_pkg_config && LD_LIBRARY_PATH=$library ./with_pkg_config)

# build_c SOURCE PROGRAM: as a C programmer who takes warnings seriously does it.
build_c() {
  # shellcheck disable=SC2046
  cc -std=c11 -Wall -Wextra -Werror -pedantic "$1" -o "$2" $(pkg-config --cflags --libs pagetide)
}

echo "a program in C"
cat >"$scratch/written.c" <<'EOF'
#define _DEFAULT_SOURCE
#include <pagetide/pagetide.h>
#include <stdio.h>
#include <sys/mman.h>

int main(void) {
  size_t page = pagetide_page_size();
  char* memory = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pagetide_tracker_options options;
  pagetide_tracker* tracker = NULL;
  pagetide_watch_id watch = 0;
  pagetide_collected* collected = NULL;
  uint64_t word = 0;
  if (memory == MAP_FAILED || pagetide_tracker_options_init(&options, sizeof options) < 0 ||
      pagetide_tracker_create(&options, &tracker) < 0 ||
      pagetide_tracker_watch(tracker, memory, 8 * page, &watch) < 0 ||
      pagetide_collected_create(&collected) < 0) {
    puts(pagetide_last_error_message());
    return 1;
  }
  memory[2 * page] = memory[3 * page] = memory[7 * page] = 1;
  if (pagetide_tracker_take(tracker, watch, 0, collected) < 0 ||
      pagetide_collected_export(collected, PAGETIDE_WRITTEN, &word, 1) < 0) {
    puts(pagetide_last_error_message());
    return 1;
  }
  printf("%llx\n", (unsigned long long)word);
  pagetide_collected_destroy(collected);
  pagetide_tracker_destroy(tracker);
  return 0;
}
EOF
build_c "$scratch/written.c" "$scratch/written"
test "$(LD_LIBRARY_PATH=$library "$scratch/written")" = 8c

echo "a program in C with an arena and a store"
cat >"$scratch/counter.c" <<'EOF'
#include <pagetide/pagetide.h>
#include <stdio.h>

static int failed(void) {
  puts(pagetide_last_error_message());
  return 1;
}

int main(void) {
  pagetide_store* store = NULL;
  pagetide_arena* arena = NULL;
  pagetide_snapshotter* snapshotter = NULL;
  pagetide_snapshot_id latest = 0;
  if (pagetide_store_open("counter.pagetide", PAGETIDE_STORE_CREATE_OR_WRITE, &store) < 0) {
    return failed();
  }
  if (pagetide_store_latest(store, &latest) < 0
          ? pagetide_arena_create(NULL, &arena) < 0
          : pagetide_store_open_arena(store, latest, NULL, &arena) < 0) {
    return failed();
  }
  int* counter = pagetide_arena_find_root(arena, "counter", "int", sizeof *counter);
  if (counter == NULL) {
    counter = pagetide_arena_allocate_zeroed(arena, 1, sizeof *counter);
    if (counter == NULL ||
        pagetide_arena_set_root(arena, "counter", "int", counter, sizeof *counter) < 0) {
      return failed();
    }
  }
  ++*counter;
  if (pagetide_snapshotter_create(arena, store, NULL, &snapshotter) < 0 ||
      pagetide_snapshotter_take(snapshotter, NULL) < 0) {
    return failed();
  }
  ++*counter;
  if (pagetide_snapshotter_rollback(snapshotter, latest + 1, NULL) < 0) return failed();
  printf("%d\n", *counter);
  pagetide_snapshotter_destroy(snapshotter);
  pagetide_arena_destroy(arena);
  pagetide_store_close(store);
  return 0;
}
EOF
build_c "$scratch/counter.c" "$scratch/counter"
for expected in 1 2 3; do
  test "$(cd "$scratch" && LD_LIBRARY_PATH=$library ./counter)" = "$expected"
done

echo "the C header in C++"
printf '#include <pagetide/pagetide.h>\nint main() { return 0; }\n' >"$scratch/header.cc"
# shellcheck disable=SC2046
"$cxx" -std=c++11 -Wall -Wextra -Werror -pedantic -fsyntax-only "$scratch/header.cc" \
  $(pkg-config --cflags pagetide)

echo "each header by itself"
(cd "$prefix/include" && find pagetide -name '*.h' -o -name '*.hpp') | while read -r header; do
  printf '#include <%s>\n' "$header"
  printf '#include <%s>\nint main() { return 0; }\n' "$header" >"$scratch/header.cc"
  # shellcheck disable=SC2046
  "$cxx" -std=c++20 -Wall -Wextra -Werror -fsyntax-only "$scratch/header.cc" \
    $(pkg-config --cflags pagetide)
done

echo "the programs of pagetide_tracker(3) and pagetide_arena(3)"
manual=$(dirname "$(find "$prefix" -name pagetide_tracker.3)")
for page in tracker arena; do
  sed -n '/^\.EX/,/^\.EE/ { /^\.E/d; s/\\e/\\/g; s/\\-/-/g; p }' "$manual/pagetide_$page.3" \
    >"$scratch/manual_$page.c"
  build_c "$scratch/manual_$page.c" "$scratch/manual_$page"
done
test "$(LD_LIBRARY_PATH=$library "$scratch/manual_tracker")" = "1 pages from page 5"
for run in 1 2; do
  test "$(cd "$scratch" && LD_LIBRARY_PATH=$library ./manual_arena)" = "run $run"
done

echo "every function of the C API has a page"
functions=$(nm -D --defined-only "$library/libpagetide.so" | sed -n 's/.* T \(pagetide_[a-z_]*\).*/\1/p')
test -n "$functions"
for function in $functions; do
  page=$manual/$function.3
  # An alias consists of the name of the page that describes it.
  ! grep -q '^\.so ' "$page" || page=$manual/../$(sed -n 's/^\.so //p' "$page")
  grep -q "^\.BI* \"*.*[ *]$function(" "$page" || { echo "$page says nothing of $function"; exit 1; }
done

echo "with find_package"
mkdir "$scratch/app"
cp "$source/examples/first_program.cc" "$scratch/app"
cat >"$scratch/app/containers.cc" <<'EOF'
#include <cstdio>
#include <vector>

#include <pagetide/pagetide.hpp>

using Numbers = std::vector<int, pagetide::allocator<int>>;

int main() {
  auto store = pagetide::Store::open("containers.pagetide").value();
  auto latest = store.latest();
  auto arena = (latest ? store.open_arena(*latest) : pagetide::Arena::create()).value();
  Numbers& numbers = *arena.find_or_construct<Numbers>("numbers", arena).value();
  auto next = pagetide::make_in_arena<int>(arena, static_cast<int>(numbers.size())).value();
  numbers.push_back(*next);
  next.reset();
  for (int number : numbers) std::printf("%d,", number);
  pagetide::Snapshotter(arena, store).take().value();
}
EOF
cat >"$scratch/app/CMakeLists.txt" <<'EOF'
cmake_minimum_required(VERSION 3.25)
project(app LANGUAGES CXX)
find_package(pagetide REQUIRED)
foreach(kind shared static)
  add_executable(with_${kind} first_program.cc)
  add_executable(containers_${kind} containers.cc)
  target_link_libraries(with_${kind} PRIVATE pagetide::${kind})
  target_link_libraries(containers_${kind} PRIVATE pagetide::${kind})
endforeach()
EOF
cmake -S "$scratch/app" -B "$scratch/app/build" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" >"$scratch/configure.log"
cmake --build "$scratch/app/build" >"$scratch/build.log" || { cat "$scratch/build.log"; exit 1; }
for kind in shared static; do
  mkdir "$scratch/$kind"
  (cd "$scratch/$kind" && ../app/build/with_$kind)
  for expected in "0," "0,1," "0,1,2,"; do
    test "$(cd "$scratch/$kind" && ../app/build/containers_$kind)" = "$expected"
  done
done

echo "the command runs from where it was installed"
"$prefix/bin/pagetide" --version
test -s "$(find "$prefix" -name pagetide.1)"
