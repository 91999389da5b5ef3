#!/usr/bin/env bash
# Installs the build into a scratch prefix and builds the README's program against it, once with
# pkg-config and once with find_package, and programs in C: what is installed must be all that is
# needed.
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

echo "the program of pagetide_tracker(3)"
manual=$(dirname "$(find "$prefix" -name pagetide_tracker.3)")
sed -n '/^\.EX/,/^\.EE/ { /^\.E/d; s/\\e/\\/g; s/\\-/-/g; p }' "$manual/pagetide_tracker.3" \
  >"$scratch/manual.c"
build_c "$scratch/manual.c" "$scratch/manual"
test "$(LD_LIBRARY_PATH=$library "$scratch/manual")" = "1 pages from page 5"

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
cat >"$scratch/app/CMakeLists.txt" <<'EOF'
cmake_minimum_required(VERSION 3.25)
project(app LANGUAGES CXX)
find_package(pagetide REQUIRED)
foreach(kind shared static)
  add_executable(with_${kind} first_program.cc)
  target_link_libraries(with_${kind} PRIVATE pagetide::${kind})
endforeach()
EOF
cmake -S "$scratch/app" -B "$scratch/app/build" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" >"$scratch/configure.log"
cmake --build "$scratch/app/build" >"$scratch/build.log" || { cat "$scratch/build.log"; exit 1; }
for kind in shared static; do
  mkdir "$scratch/$kind"
  (cd "$scratch/$kind" && ../app/build/with_$kind)
done

echo "the command runs from where it was installed"
"$prefix/bin/pagetide" --version
test -s "$(find "$prefix" -name pagetide.1)"
