#!/usr/bin/env bash
# Installs the build into a scratch prefix and builds the README's program against it, once with
# pkg-config and once with find_package: what is installed must be all that is needed.
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
