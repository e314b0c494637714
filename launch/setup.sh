# shellcheck shell=bash
# Shared by launch/quickstart and launch/test: packages, configure and build, each only when needed.
# REQUIRES: `root`, the source tree.
: "${root:?}"

# What one clone has compiled serves the next, wherever it lies.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}

# say LINE: a plain line. progress LINE: the same line again and again on a terminal.
say() {
  printf '%s\n' "$*"
}

if [[ -t 1 && ${TERM:-dumb} != dumb ]]; then
  on_terminal=yes
else
  on_terminal=no
fi

progress() {
  printf '\r\033[K%s' "$*"
}

end_progress() {
  if [[ $on_terminal == yes ]]; then
    printf '\r\033[K'
  fi
}

die() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  shift
  (($# == 0)) || printf '  %s\n' "$@" >&2
  exit 1
}

# show_failure LOG WHAT: the part of the log that explains, and where the rest is.
show_failure() {
  local log=$1 what=$2
  {
    if grep -qE 'error:|CMake Error' "$log"; then
      grep -nE -A 6 'error:|CMake Error|FAILED:' "$log" | head -n 60
    else
      tail -n 40 "$log"
    fi
    printf '%s: %s failed; the whole log is %s\n' "${0##*/}" "$what" "$log"
  } >&2
  exit 1
}

# True when Ninja can take over: it repeats CMake by itself when a CMakeLists.txt changed, but knows
# nothing of the presets file.
configured_in() {
  local dir=$1
  [[ -f $dir/build.ninja && ! $root/CMakePresets.json -nt $dir/build.ninja ]] &&
    grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$dir/CMakeCache.txt" 2>/dev/null
}

require_writable() {
  [[ -w $1 ]] || die "$1 is not writable; another user made it. Remove it, or run as that user."
}

# configure PRESET: runs CMake unless the build folder is up to date. Options that were set there by
# hand stay, except in a folder that was half made or copied from elsewhere.
configure() {
  local preset=$1 dir=$root/build/$1 log=$root/build/$1/build.log
  configured_in "$dir" && return 0
  mkdir -p "$dir" 2>/dev/null || die "cannot create $dir (no permission, or the disk is full)."
  require_writable "$dir"
  local fresh=()
  if [[ ! -f $dir/build.ninja ]] ||
    ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$dir/CMakeCache.txt" 2>/dev/null; then
    fresh=(--fresh)
  fi
  say "configuring build/$preset"
  if ! (cd "$root" && cmake --preset "$preset" "${fresh[@]}") >"$log" 2>&1 </dev/null; then
    show_failure "$log" "configuring build/$preset"
  fi
}

# build PRESET [TARGET...]: silent when there is nothing to do.
build() {
  local preset=$1 dir=$root/build/$1 log=$root/build/$1/build.log
  shift
  configure "$preset"
  require_writable "$dir"
  local jobs=()
  [[ -z ${CMAKE_BUILD_PARALLEL_LEVEL:-} ]] || jobs=(-j "$CMAKE_BUILD_PARALLEL_LEVEL")
  local started=$SECONDS status=0
  NINJA_STATUS='[%f/%t] ' ninja -C "$dir" "${jobs[@]}" "$@" 2>&1 </dev/null |
    follow_build "$preset" "$log" || status=$?
  end_progress
  ((status == 0)) || show_failure "$log" "building build/$preset"
  if ((SECONDS - started >= 2)); then
    say "built build/$preset in $((SECONDS - started)) s"
  fi
}

# Copies ninja's output to the log and shows how far it is.
follow_build() {
  local preset=$1 log=$2 line done_count total started=$SECONDS next_plain_s=$((SECONDS + 20))
  : >"$log"
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
    done_count=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
    if [[ $on_terminal == yes ]]; then
      progress "building build/$preset: $done_count of $total steps, $((SECONDS - started)) s"
    elif ((SECONDS >= next_plain_s)); then
      say "building build/$preset: $done_count of $total steps, $((SECONDS - started)) s"
      next_plain_s=$((SECONDS + 20))
    fi
  done
}
